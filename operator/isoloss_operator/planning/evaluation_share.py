"""What part of a run's compute goes to its evaluations.

Nothing is derived from it by itself: when and on what a run is evaluated is part of its point's key, and
a default that followed the longest run would start all points over when their tokens are raised.
"""

import math
from typing import Final

from isoloss_operator.api import ScalingSweepSpec

GOAL: Final = 0.03
WEIGHTS: Final = 2
"""Raw and averaged weights are evaluated."""
FORWARD_SHARE: Final = 1 / 3
"""Share of a training step's FLOPs: the backward pass takes twice the forward pass."""


def _forward_passes(spec: ScalingSweepSpec, tokens: int) -> int:
    """Over the validation sequences in a run of `tokens`: of each kind of weights at firstTokens * 10^(i / perDecade)
    and at its end."""
    decades = math.log10(tokens / spec.evaluation.first_tokens)
    return WEIGHTS * (1 + math.floor(spec.evaluation.per_decade * decades) + 1)


def evaluation_share(spec: ScalingSweepSpec, tokens: int) -> float:
    """Share of the compute of a run of `tokens` and its evaluations, at most: a domain may have fewer sequences held
    out."""
    sequences = spec.data.validation.sequences_per_domain * _a_sequence_of_each_domain(spec)
    spent = _forward_passes(spec, tokens) * sequences
    return spent / (spent + tokens)


def largest_evaluation_share(spec: ScalingSweepSpec) -> float:
    """Of any proxy's runs; seldom of the shortest alone, which may just miss an evaluation that longer ones have."""
    return max(evaluation_share(spec, proxy.tokens) for proxy in spec.proxies)


def affordable_sequences(spec: ScalingSweepSpec) -> int:
    """The sequencesPerDomain at which no proxy's runs exceed GOAL, at least 1."""
    each = max(_forward_passes(spec, proxy.tokens) / proxy.tokens for proxy in spec.proxies)
    return max(1, math.floor(GOAL / (1 - GOAL) / (each * _a_sequence_of_each_domain(spec))))


def _a_sequence_of_each_domain(spec: ScalingSweepSpec) -> float:
    """As tokens of training that cost as much as evaluating them."""
    return FORWARD_SHARE * len(spec.data.domains) * spec.data.sequence_length
