"""Training FLOPs per token, by part and under named conventions.

The conventions differ by a factor of up to four at 100 M parameters with a 131k vocabulary: the parts are
kept, and every number names its convention. Without a name it is `6ND`.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from isoloss_contract.records import ParameterCounts
from isoloss_operator.planning.models import attention_shapes, parameter_counts


class Convention(StrEnum):
    """How training FLOPs are counted."""

    SIX_ND = "6ND"
    """6 * (active matrix parameters, head included, look-up table not) * tokens: the laws' default."""
    EXACT = "exact"
    """6ND plus attention scores under the causal mask: what is executed."""
    PALM = "PaLM"
    """6ND plus 12 * layers * width * sequence length: counts the masked half too. Usual for MFU."""


@dataclass(frozen=True)
class TokenFlops:
    """Training FLOPs (forward and backward) per token, by part."""

    body: float
    head: float
    attention_causal: float
    """Attention scores and their product with the values, mean over the positions of a sequence."""
    attention_full: float
    """The same without the causal mask."""

    def total(self, convention: Convention = Convention.SIX_ND) -> float:
        """FLOPs per token under a convention."""
        attention = {
            Convention.SIX_ND: 0.0,
            Convention.EXACT: self.attention_causal,
            Convention.PALM: self.attention_full,
        }
        return self.body + self.head + attention[convention]


def token_flops(config: Mapping[str, Any], sequence_length: int) -> TokenFlops:
    """Training FLOPs per token of the model behind a transformers config.

    A matrix parameter costs 2 FLOPs forward and 4 backward. Raises UnsupportedModel.
    """
    counts, shapes = parameter_counts(config), attention_shapes(config)
    return TokenFlops(
        body=6.0 * counts.body_active,
        head=6.0 * counts.head,
        attention_causal=sum(shape.flops_per_token(sequence_length) for shape in shapes),
        attention_full=sum(shape.pair_flops for shape in shapes) * sequence_length,
    )


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
