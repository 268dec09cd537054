"""AdamW on the flat weights, with warm-up in tokens and clipping that never waits for the device."""

from __future__ import annotations

import torch
from torch.optim.adamw import adamw

from isoloss_contract.records import OptimizerConfig


def learning_rate(peak: float, tokens: int, warmup_tokens: int) -> float:
    """Rate of the step that brings the run to `tokens`: linear up to `warmup_tokens`, then constant."""
    return peak * min(1.0, tokens / warmup_tokens) if warmup_tokens else peak


class AdamW:
    """Decoupled weight decay on every weight, as torch's own default; state in float32."""

    def __init__(self, config: OptimizerConfig, weights: torch.Tensor) -> None:
        self._config = config
        self._weights = weights
        self.first_moment = torch.zeros_like(weights)
        self.second_moment = torch.zeros_like(weights)
        self.steps = torch.zeros((), dtype=torch.float32, device=weights.device)

    def step(self, gradient: torch.Tensor, rate: float) -> torch.Tensor:
        """Clip `gradient` (in place) to the configured norm and update; returns the norm before."""
        norm: torch.Tensor = torch.linalg.vector_norm(gradient)
        gradient.mul_((self._config.gradient_clip / (norm + 1e-6)).clamp(max=1.0))
        # The functional form: torch.optim's classes pull in the whole compiler when they are made.
        adamw(
            [self._weights],
            [gradient],
            [self.first_moment],
            [self.second_moment],
            [],
            [self.steps],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            lr=rate,
            weight_decay=self._config.weight_decay,
            eps=self._config.epsilon,
        )
        return norm
