"""What the probes of a prediction cost at most, before there is an answer to train them around."""

from __future__ import annotations

from dataclasses import dataclass

from isoloss_operator.api import HyperparamPredictionSpec
from isoloss_operator.planning.probes import MAX_PLACES


@dataclass(frozen=True)
class ProbeCost:
    """All probes of one validation, retries left out. Rounding can make two places one: then it is less."""

    runs: int
    share_of_budget: float
    """Share of the prediction's planned compute, all runs together."""
    flops: float | None
    """As the prediction's budget counts them; None: the budget is in tokens."""
    tokens: float | None
    """None: the budget is in FLOPs."""
    max_flops: float | None
    """The validation's own budget; None: it does not limit FLOPs."""


def probe_cost(spec: HyperparamPredictionSpec) -> ProbeCost | None:
    """None if no validation is asked for."""
    validation, budget = spec.validation, spec.budget
    if validation is None:
        return None
    runs = MAX_PLACES * validation.seeds
    share, own = runs * float(validation.tokens_share), validation.budget
    return ProbeCost(
        runs=runs,
        share_of_budget=share,
        flops=share * float(budget.flops) if budget.flops else None,
        tokens=share * budget.tokens if budget.tokens else None,
        max_flops=float(own.flops) if own and own.flops else None,
    )
