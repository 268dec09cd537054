"""How fast training is assumed to be before any point has run, and how long Jobs take then."""

import heapq
from collections.abc import Iterable
from typing import Final

from isoloss_contract.records import ParameterCounts

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
