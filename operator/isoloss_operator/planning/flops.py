"""Training FLOPs, and how fast accelerators are assumed to compute them.

Without another word FLOPs are 6ND: 6 * (active matrix parameters, head included, look-up table not) * tokens. What is
executed has attention scores in addition; at 100 M parameters and long sequences they are a third of it.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Final

from isoloss_contract.records import ParameterCounts
from isoloss_operator.planning.models import attention_shapes, parameter_counts


def executed_flops(config: Mapping[str, Any], sequence_length: int) -> float:
    """Training FLOPs per token of the model behind a transformers config: 6ND, and attention scores under the causal mask.

    A matrix parameter costs 2 FLOPs forward and 4 backward. Raises UnsupportedModel.
    """
    of_scores = sum(each.flops_per_token(sequence_length) for each in attention_shapes(config))
    return six_nd(parameter_counts(config), 1) + of_scores


def six_nd(parameters: ParameterCounts, tokens: float) -> float:
    """6 * active matrix parameters * tokens."""
    return 6.0 * parameters.active * tokens


PEAK_FLOPS: Final = 989e12
"""Dense bf16 of an H100 SXM, its data sheet."""
DENSE_UTILISATION: Final = 0.45
SMALL_UTILISATION: Final = 0.40
MIXTURE_UTILISATION: Final = 0.30
SMALL_PARAMETERS: Final = 300_000_000
"""Active parameters, head included, below which a dense model is small: much of its step moves memory."""


def assumed_utilisation(counts: ParameterCounts) -> float:
    """Share of the peak that a model's training reaches, by the FLOPs that it executes.

    On an H200 with sequences of 8,192 tokens dense-100m reached 45%, dense-500m 50, moe-100m 35 and moe-500m 34
    (docs/evidence/gpu.md). Assumed is a tenth less, and an eighth less of mixtures: an H100's memory is slower by 30%, which
    bounds about a quarter and a third of their steps.
    """
    if counts.body_total > counts.body_active:
        return MIXTURE_UTILISATION
    return SMALL_UTILISATION if counts.active < SMALL_PARAMETERS else DENSE_UTILISATION


def elapsed(durations: Iterable[float], parallelism: int) -> float:
    """Time until the last of these Jobs ends, in the unit of `durations`; 0 of none.

    The cheapest start first, as a sweep starts them (decide/choose.py). What starting a Job takes is left out.
    """
    ends = [0.0] * parallelism
    for duration in sorted(durations):
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
