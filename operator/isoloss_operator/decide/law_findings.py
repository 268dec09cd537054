"""What fitted laws say in the condition FitReady."""

from __future__ import annotations

from isoloss.laws import Laws
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.reasons import Reason


def laws_finding(laws: Laws, points: int, *, final: bool) -> Finding:
    """FitReady for laws of `points` runs; `final`: no further point will be done."""
    if laws.only_batch_size is not None:
        return _one_batch_size(laws.only_batch_size, points, final=final)
    if laws.status == "refused":
        refusal = next(iter(laws.refusals), None)
        reason = refusal.reason if refusal else Reason.LAWS_REFUSED
        message = refusal.message if refusal else "The data do not support the laws."
        return Finding.false(reason, message if final else f"So far: {message}", stalled=final)
    if final:
        message = f"The laws are fitted to {points} points.{_refused_laws(laws)}"
        return Finding.true(Reason.FITTED, message)
    message = f"The laws are fitted to the first {points} points.{_refused_laws(laws)}"
    return Finding.true(Reason.PROVISIONAL, message)


def _one_batch_size(batch_size: float, points: int, *, final: bool) -> Finding:
    message = (
        f"The best learning rate at {batch_size:g} sequences is fitted to {'' if final else 'the first '}{points} points, all "
        "of that batch size. Predictions with another spec.batchSize, or none, are refused."
    )
    return Finding.true(Reason.FITTED if final else Reason.PROVISIONAL, message)


def _refused_laws(laws: Laws) -> str:
    """Which laws are refused although another route answers; empty where none is."""
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
