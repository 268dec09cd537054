"""How fast training is assumed to be before anything was measured."""

from __future__ import annotations

from typing import Final

PEAK_FLOPS: Final = 989e12
"""Dense bf16 of an H100 SXM, its data sheet."""
DEFAULT_UTILISATION: Final = 0.35
ASSUMED_FLOPS_PER_SECOND: Final = DEFAULT_UTILISATION * PEAK_FLOPS
"""FLOP/s of one accelerator."""
