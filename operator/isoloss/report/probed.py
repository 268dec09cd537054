"""Results of probes, as a HyperparamPrediction reports them in its status: what the report shows of a validation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isoloss.laws import Interval
from isoloss.status import VALIDATED
from isoloss.summaries import in_words
from isoloss.validation import TOLERANCE

Json = Mapping[str, Any]
DIVERGED = "Diverged"
"""A place's state in the status."""


@dataclass(frozen=True)
class ProbedPlace:
    """One learning rate and batch size."""

    learning_rate: float
    batch_size: float
    """Sequences."""
    state: str
    loss: float | None
    """Nats per token, mean over the seeds that have one; None if there is none."""
    standard_error: float | None
    """Standard error of that mean, nats; None before all probes are over, or if training diverged."""

    @property
    def diverged(self) -> bool:
        """Whether any seed did: its loss, if it has one, is that of the others."""
        return self.state == DIVERGED


@dataclass(frozen=True)
class Probed:
    """The probes of an answer and the verdict."""

    places: tuple[ProbedPlace, ...]
    """The answer first."""
    tokens: int
    """Tokens that each probe trains for."""
    status: str
    """True, False or Unknown, of the condition Validated."""
    verdict: str
    """Its reason in words; empty before there is one."""
    message: str
    tolerance: float
    """Nats that the answer may lose at the full budget and still hold."""
    learning_rate: Interval | None = None
    """Interval from laws and probes together; None if they give none."""
    batch_size: Interval | None = None
    """Sequences, not rounded. None also if it cannot be converted to those of the probes."""
    unit: str = "sequences"
    """Of all batch sizes, those of the laws' sequences; with their length if the target's are of another."""


def probed_by(prediction: Json, laws_length: int | None) -> Probed | None:
    """The probes in a prediction's status, in sequences of the laws' length; None if it has none yet."""
    status = prediction["status"]
    found = status.get("validation") or {}
    if not found.get("places"):
        return None
    spec = prediction.get("spec") or {}
    length = spec.get("targetSequenceLength") or laws_length
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    condition = conditions.get(VALIDATED, {})
    errors = [_number(place.get("standardError")) for place in found["places"]]
    # All places have as many seeds: half of the variance of a difference is that of one place.
    own = next((error / math.sqrt(2.0) for error in errors if error is not None), None)
    refined = status.get("refined") or {}
    return Probed(
        places=tuple(_place(each, own) for each in found["places"]),
        tokens=int(found.get("tokens", 0)),
        status=str(condition.get("status", "Unknown")),
        verdict=in_words(str(condition.get("reason", ""))),
        message=str(condition.get("message", "")),
        tolerance=float((spec.get("validation") or {}).get("tolerance", TOLERANCE)),
        learning_rate=_interval(refined.get("learningRate")),
        batch_size=_in_laws_sequences(_interval(refined.get("batchSize")), length, laws_length),
        unit="sequences" if laws_length in (None, length) else f"sequences of {laws_length}",
    )


def _place(place: Json, error: float | None) -> ProbedPlace:
    loss, state = _number(place.get("loss")), str(place.get("state", ""))
    return ProbedPlace(
        learning_rate=float(place["learningRate"]),
        batch_size=float(place["batchSize"]),
        state=state,
        loss=loss,
        standard_error=None if loss is None or state == DIVERGED else error,
    )


def _in_laws_sequences(
    refined: Interval | None, length: int | None, laws_length: int | None
) -> Interval | None:
    """Probes are in sequences of the laws, what is refined in those of the target, of `length` tokens."""
    if refined is None or length == laws_length:
        return refined
    if length is None or laws_length is None:
        return None
    ratio = length / laws_length
    return Interval(refined.value * ratio, refined.low * ratio, refined.high * ratio)


def _number(text: Any) -> float | None:
    return float(text) if text else None


def _interval(found: Json | None) -> Interval | None:
    if not found or not found.get("value"):
        return None
    value = float(found["value"])
    return Interval(value, float(found.get("low") or value), float(found.get("high") or value))
