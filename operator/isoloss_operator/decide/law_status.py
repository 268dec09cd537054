"""Laws as a status and the condition FitReady show them. Nothing here computes anything new."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from isoloss import formatting
from isoloss.formatting import shortened
from isoloss.laws import (
    HyperparameterLaw,
    Interval,
    Laws,
    LossComputeLaw,
    Optimum,
    Refusal,
    hyperparameter_formula,
    hyperparameter_quality,
    loss_compute_formula,
    loss_compute_quality,
)
from isoloss_operator.api import statuses
from isoloss_operator.decide.reasons import Finding, Reason

LawState = Literal["Fitted", "Provisional", "Refused"]


def interval_status(
    interval: Interval | None, text: Callable[[float | None], str] = formatting.number
) -> statuses.IntervalStatus | None:
    """An interval in digits; `text` formats one number."""
    if interval is None:
        return None
    return statuses.IntervalStatus(
        value=text(interval.value), low=text(interval.low), high=text(interval.high)
    )


def law_statuses(laws: Laws, *, provisional: bool) -> dict[str, statuses.LawStatus]:
    """The three laws, by the names of their fields in a status."""
    rate, batch, loss = laws.learning_rate, laws.batch_size, laws.loss_compute
    found: dict[str, tuple[HyperparameterLaw | LossComputeLaw, str, str]] = {
        "learning_rate_law": (rate, hyperparameter_formula(rate), hyperparameter_quality(rate)),
        "batch_size_law": (batch, hyperparameter_formula(batch), hyperparameter_quality(batch)),
        "loss_compute_law": (loss, loss_compute_formula(loss), loss_compute_quality(loss)),
    }
    return {
        name: statuses.LawStatus(status=_state(law, provisional), formula=formula, quality=quality)
        if formula
        else _refused(law.refusal)
        for name, (law, formula, quality) in found.items()
    }


def _state(law: HyperparameterLaw | LossComputeLaw, provisional: bool) -> LawState:
    if law.status == "refused":
        return "Refused"
    return "Provisional" if provisional or law.status == "provisional" else "Fitted"


def _refused(refusal: Refusal | None) -> statuses.LawStatus:
    if refusal is None:
        return statuses.LawStatus(status="Refused")
    message = shortened(refusal.message, statuses.MAX_ENTRY)
    return statuses.LawStatus(status="Refused", reason=refusal.reason.value, message=message)


def optimum_statuses(
    optima: Sequence[Optimum], proxies: Mapping[int, str]
) -> tuple[statuses.OptimumStatus, ...]:
    """A few optima, evenly chosen; `proxies` names sizes by their active parameters."""
    found = [optimum for optimum in optima if optimum.status != "refused"]
    step = max(1, -(-len(found) // statuses.MAX_ENTRIES))
    return tuple(
        statuses.OptimumStatus(
            loss=formatting.loss(optimum.loss),
            proxy=proxies.get(round(optimum.params), "") if optimum.params else "",
            learning_rate=formatting.learning_rate(optimum.learning_rate),
            batch_size=formatting.number(optimum.batch_size),
            tokens=formatting.number(optimum.tokens),
            flops=formatting.number(optimum.flops),
        )
        for optimum in found[::step]
    )


def laws_finding(laws: Laws, points: int, *, final: bool) -> Finding:
    """FitReady for laws of `points` runs; `final`: no further point will be done."""
    if laws.only_batch_size is not None:
        return _one_batch_size(laws.only_batch_size, points, final=final)
    if laws.status == "refused":
        refusal = next(iter(laws.refusals), None)
        reason = refusal.reason if refusal else Reason.LAWS_REFUSED
        message = refusal.message if refusal else "The data do not support the laws."
        return Finding(reason, message if final else f"So far: {message}", stalled=final)
    if final:
        message = f"The laws are fitted to {points} points.{_refused_laws(laws)}"
        return Finding(Reason.FITTED, message, "True")
    message = f"The laws are fitted to the first {points} points.{_refused_laws(laws)}"
    return Finding(Reason.PROVISIONAL, message, "True")


def _one_batch_size(batch_size: float, points: int, *, final: bool) -> Finding:
    message = (
        f"The best learning rate at {batch_size:g} sequences is fitted to {'' if final else 'the first '}{points} points, all "
        "of that batch size. Predictions with another spec.batchSize, or none, are refused."
    )
    return Finding(Reason.FITTED if final else Reason.PROVISIONAL, message, "True")


def _refused_laws(laws: Laws) -> str:
    """Which laws are refused although another route answers; empty if none is."""
    named = {
        "learning rate": laws.learning_rate.status,
        "batch size": laws.batch_size.status,
        "loss over compute": laws.loss_compute.status,
    }
    refused = [name for name, status in named.items() if status == "refused"]
    if not refused:
        return ""
    reasons = " ".join(refusal.message for refusal in laws.refusals)
    return (
        f" Of the iso-loss laws, those of {', '.join(refused)} are refused: {reasons} "
        "Answers that need them use the joint surface alone."
    )
