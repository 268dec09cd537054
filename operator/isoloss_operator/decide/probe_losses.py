"""Which losses of probes are judged: those that the laws are of."""

from __future__ import annotations

from dataclasses import dataclass

from isoloss_contract.ledger import PointRecord
from isoloss_operator.api import ScalingSweepSpec


@dataclass(frozen=True)
class ProbeLoss:
    """What a probe came to."""

    tokens: int
    """Seen at its end, the cooldown of one that cools down included."""
    loss: float | None
    """Nats per token; None if not finite."""


def judged_loss(spec: ScalingSweepSpec, record: PointRecord) -> ProbeLoss | None:
    """The loss by which a probe with a result is judged, `spec` being of the sweep that trained it.

    None where the laws are of cooled losses and the result states none: no other loss stands in for it.
    """
    match spec.fit.weights:
        case "Cooled":
            if record.cooled_tokens is None:
                return None
            return ProbeLoss(record.cooled_tokens, record.cooled_loss)
        case "Raw":
            return ProbeLoss(record.tokens, record.loss)
        case "Averaged":
            return ProbeLoss(record.tokens, record.averaged_loss)
