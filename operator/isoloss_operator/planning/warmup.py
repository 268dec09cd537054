"""How long the learning rate warms up when the spec does not say."""

from __future__ import annotations

from isoloss_contract.records import WARMUP_MULTIPLE, ParameterCounts
from isoloss_operator.api import ScalingSweepSpec


def warmup_tokens(spec: ScalingSweepSpec, parameters: ParameterCounts) -> int:
    """Tokens of the linear warm-up of a size, the same for every batch size.

    As given; else one token per active parameter (Porian et al. 2406.19146), at most as many as leave
    every evaluation fitted. Only of what is immutable: a share of the run would start all points over
    when their tokens are raised.
    """
    given = spec.optimizer.warmup_tokens
    if given is not None:
        return given
    # Fitted are evaluations beyond WARMUP_MULTIPLE x the warm-up; the first is at firstTokens.
    longest = (spec.evaluation.first_tokens - 1) // WARMUP_MULTIPLE
    return min(parameters.active, longest)
