"""An exponential average of the weights, measured in tokens so that it means the same at every
batch size. It stands in for the decay of the learning rate that a run never gets."""

from __future__ import annotations

import math

import torch

SHARE = 0.1
"""The time constant is never longer than this share of the tokens seen: the average must forget
where the run began."""


def time_constant(tokens: int, averaging_tokens: int) -> float:
    """Tokens over which the average forgets, at `tokens` seen; 0 stands for SHARE throughout."""
    growing = SHARE * tokens
    return min(growing, averaging_tokens) if averaging_tokens else growing


class WeightAverage:
    """The averaged copy of `weights`."""

    def __init__(self, weights: torch.Tensor, averaging_tokens: int) -> None:
        self.weights = weights.clone()
        self._averaging_tokens = averaging_tokens

    def update(self, weights: torch.Tensor, tokens: int, batch_tokens: int) -> None:
        """Take in the weights after a step of `batch_tokens` that brought the run to `tokens`."""
        constant = time_constant(tokens, self._averaging_tokens)
        self.weights.lerp_(weights, -math.expm1(-batch_tokens / constant))
