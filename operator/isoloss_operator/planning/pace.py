"""How fast training is assumed to be before anything was measured."""

from __future__ import annotations

from typing import Final

from isoloss_contract.records import ParameterCounts

PEAK_FLOPS: Final = 989e12
"""Dense bf16 of an H100 SXM, its data sheet."""
DENSE_UTILISATION: Final = 0.35
SMALL_UTILISATION: Final = 0.30
MIXTURE_UTILISATION: Final = 0.20
SMALL_PARAMETERS: Final = 300_000_000
"""Active parameters, head included, below which a dense model is small: much of its step moves memory."""


def assumed_utilisation(counts: ParameterCounts) -> float:
    """Share of the peak that a model's training reaches, by the FLOPs that it executes.

    A roofline of the trainer's step on an H100 with sequences of 8,192 tokens, where every operation takes the longer of
    its arithmetic and its memory traffic, gives dense-100m 28 to 32 %, dense-500m 33 to 38, moe-100m 18 to 24 and
    moe-500m 16 to 22. Nothing has been measured on a GPU.
    """
    if counts.body_total > counts.body_active:
        return MIXTURE_UTILISATION
    return SMALL_UTILISATION if counts.active < SMALL_PARAMETERS else DENSE_UTILISATION
