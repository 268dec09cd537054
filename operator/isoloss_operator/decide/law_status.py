"""Laws and predictions in words and digits, as a status shows them. Nothing here computes anything new."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from isoloss.laws import HyperparameterLaw, Interval, Laws, LossComputeLaw, Optimum, Refusal
from isoloss_operator.api import IntervalStatus, LawStatus, OptimumStatus
from isoloss_operator.decide.conditions import shortened

MAX_TEXT = 300
"""Bytes of one text in a status."""
MAX_ENTRIES = 8

LawState = Literal["Fitted", "Provisional", "Refused"]


def number(value: float | None, digits: int = 3) -> str:
    """A number with sensible digits: 0.0123, 2.34e-4, 768, 2.1e21; empty for None."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "unbounded"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return _plain(value, digits)
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def _plain(value: float, digits: int) -> str:
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rate(value: float | None) -> str:
    """A learning rate: always with an exponent, as people write them."""
    if value is None or not math.isfinite(value) or value <= 0:
        return ""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def loss_text(value: float | None) -> str:
    """A loss in nats per token, four decimals."""
    return "" if value is None or not math.isfinite(value) else f"{value:.4f}"


def interval_status(
    interval: Interval | None, text: Callable[[float | None], str] = number
) -> IntervalStatus | None:
    """An interval in digits; `text` formats one number."""
    if interval is None:
        return None
    return IntervalStatus(
        value=text(interval.value), low=text(interval.low), high=text(interval.high)
    )


def law_statuses(laws: Laws, *, provisional: bool) -> dict[str, LawStatus]:
    """The three laws under the names of their status fields."""
    return {
        "learning_rate_law": _hyperparameter_law(laws.learning_rate, provisional),
        "batch_size_law": _hyperparameter_law(laws.batch_size, provisional),
        "loss_compute_law": _loss_compute_law(laws.loss_compute, provisional),
    }


def _state(law: HyperparameterLaw | LossComputeLaw, provisional: bool) -> LawState:
    if law.status == "refused":
        return "Refused"
    return "Provisional" if provisional or law.status == "provisional" else "Fitted"


def _refused(refusal: Refusal | None) -> LawStatus:
    if refusal is None:
        return LawStatus(status="Refused")
    return LawStatus(
        status="Refused",
        reason=refusal.reason.value,
        message=shortened(refusal.message, MAX_TEXT),
    )


def _hyperparameter_law(law: HyperparameterLaw, provisional: bool) -> LawStatus:
    if law.intercept is None or law.slope is None:
        return _refused(law.refusal)
    symbol = "LR" if law.quantity == "learning_rate" else "B"
    if law.form == "PowerLawOfLoss":
        formula = f"{symbol} = {_exponential(law.intercept)} * L^{number(law.slope)}"
    else:
        variable = f"ln {symbol}" if law.quantity == "learning_rate" else symbol
        formula = f"ln C = {number(law.slope, 4)} {variable} + {number(law.intercept, 6)}"
    return LawStatus(
        status=_state(law, provisional),
        formula=formula,
        quality=_quality(law.points, law.r_squared, "slope", law.slope_interval),
    )


def _loss_compute_law(law: LossComputeLaw, provisional: bool) -> LawStatus:
    if law.irreducible_loss is None or law.log_alpha is None or law.gamma is None:
        return _refused(law.refusal)
    formula = (
        f"L = {loss_text(law.irreducible_loss)} + {_exponential(law.log_alpha)}"
        f" * C^-{number(law.gamma)}"
    )
    notes = [_quality(law.points, law.r_squared, "L0", law.irreducible_loss_interval)]
    if law.irreducible_loss_fixed:
        notes.append("L0 as given")
    elif not law.irreducible_loss_identified:
        notes.append("L0 not identified by the data")
    return LawStatus(
        status=_state(law, provisional), formula=formula, quality="; ".join(filter(None, notes))
    )


def _exponential(log_value: float) -> str:
    """exp of a coefficient, or that it is one where it is too large to be read."""
    return number(math.exp(log_value)) if abs(log_value) < 200 else f"exp({number(log_value, 5)})"


def _quality(points: int, r_squared: float | None, name: str, interval: Interval | None) -> str:
    parts = [f"{points} optima"]
    if r_squared is not None:
        parts.append(f"R2 {r_squared:.3f}")
    if interval is not None:
        parts.append(f"{name} {number(interval.low)} to {number(interval.high)}")
    return ", ".join(parts)


def optimum_statuses(
    optima: Sequence[Optimum], proxies: Mapping[int, str]
) -> tuple[OptimumStatus, ...]:
    """A few optima, evenly chosen; `proxies` names sizes by their active parameters."""
    found = [optimum for optimum in optima if optimum.status != "refused"]
    step = max(1, -(-len(found) // MAX_ENTRIES))
    return tuple(
        OptimumStatus(
            loss=loss_text(optimum.loss),
            proxy=proxies.get(round(optimum.params), "") if optimum.params else "",
            learning_rate=rate(optimum.learning_rate),
            batch_size=number(optimum.batch_size),
            tokens=number(optimum.tokens),
            flops=number(optimum.flops),
        )
        for optimum in found[::step]
    )


def texts(messages: Sequence[str]) -> tuple[str, ...]:
    """At most eight messages, each cut to size; the last says how many are left out."""
    shown = [shortened(message, MAX_TEXT) for message in messages[:MAX_ENTRIES]]
    if len(messages) > MAX_ENTRIES:
        shown[-1] = f"and {len(messages) - MAX_ENTRIES + 1} more"
    return tuple(shown)
