"""What part of a run's compute goes to its evaluations.

Nothing is derived from it by itself: when and on what a run is evaluated is part of its point's key, and
a default that followed the longest run would start all points over when their tokens are raised.
"""

from __future__ import annotations

import math
from typing import Final

from isoloss_operator.api import ScalingSweepSpec

GOAL: Final = 0.03
WEIGHTS: Final = 2
"""Raw and averaged weights are evaluated."""
FORWARD_SHARE: Final = 1 / 3
"""Share of a training step's FLOPs: the backward pass takes twice the forward pass."""


def evaluations(spec: ScalingSweepSpec, tokens: int) -> int:
    """How many times a run of `tokens` is evaluated: at firstTokens * 10^(i / perDecade) and at its end."""
    schedule = spec.evaluation
    return 1 + math.floor(schedule.per_decade * math.log10(tokens / schedule.first_tokens)) + 1


def cooldowns(spec: ScalingSweepSpec, tokens: int) -> int:
    """How many copies of a run of `tokens` cool down, at most: each is evaluated once."""
    schedule, cooldown = spec.evaluation, spec.evaluation.cooldown
    if cooldown is None:
        return 0
    return 1 + math.floor(cooldown.per_decade * math.log10(tokens / schedule.first_tokens))


def _forward_passes(spec: ScalingSweepSpec, tokens: int) -> int:
    """Over the validation sequences."""
    return WEIGHTS * evaluations(spec, tokens) + cooldowns(spec, tokens)


def evaluation_share(spec: ScalingSweepSpec, tokens: int) -> float:
    """Share of the compute of a run of `tokens` and its evaluations, at most: a domain may have fewer sequences held
    out."""
    spent = _forward_passes(spec, tokens) * FORWARD_SHARE * _sequences(spec) * _length(spec)
    return spent / (spent + tokens)


def largest_evaluation_share(spec: ScalingSweepSpec) -> float:
    """Of any proxy's runs; seldom of the shortest alone, which may just miss an evaluation that longer ones have."""
    return max(evaluation_share(spec, proxy.tokens) for proxy in spec.proxies)


def affordable_sequences(spec: ScalingSweepSpec) -> int:
    """The sequencesPerDomain at which no proxy's runs exceed GOAL, at least 1."""
    a_sequence = FORWARD_SHARE * len(spec.data.domains) * _length(spec)
    each = max(_forward_passes(spec, proxy.tokens) / proxy.tokens for proxy in spec.proxies)
    return max(1, math.floor(GOAL / (1 - GOAL) / (each * a_sequence)))


def _sequences(spec: ScalingSweepSpec) -> int:
    return spec.data.validation.sequences_per_domain * len(spec.data.domains)


def _length(spec: ScalingSweepSpec) -> int:
    return spec.data.sequence_length
