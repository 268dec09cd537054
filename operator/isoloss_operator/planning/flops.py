"""Training FLOPs per token, by part and under named conventions.

The conventions differ by a factor of up to four at 100 M parameters with a 131k vocabulary: the parts are
kept, and every number names its convention. Without a name it is `6ND`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from isoloss_contract.records import ParameterCounts
from isoloss_operator.planning.parameters import attention_shapes, parameter_counts


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
