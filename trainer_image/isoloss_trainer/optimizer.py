"""The optimizer step: clipping, AdamW at the schedule's learning rate, and the average of the weights.

The average stands in for the decay of the learning rate that a run never gets. Its time constant is
counted in tokens, so that it means the same at every batch size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch.optim.adamw import adamw

from isoloss_contract.records import PointConfig, TimeConstants
from isoloss_trainer.world import World

ALONE = World()
AVERAGING_SHARE = 0.1
"""The average's time constant is at most this share of the tokens seen: it must forget the start."""


@dataclass
class OptimizerState:
    """What one step hands to the next: float32, on the run's device, 16 bytes for each weight of this
    process's part.

    All but `optimizer_steps` are flat vectors in the layout of `parameters.FlatParameters`, whose gradients
    take 4 bytes per parameter more, and in bfloat16 another 4 for the copy that computes.
    """

    weights: torch.Tensor
    averaged_weights: torch.Tensor
    first_moment: torch.Tensor
    second_moment: torch.Tensor
    optimizer_steps: torch.Tensor
    """A scalar: torch counts on the device, so that nothing waits for it."""

    @classmethod
    def of(cls, weights: torch.Tensor) -> OptimizerState:
        """The state before the first step. It shares `weights` and changes them in place."""
        return cls(
            weights=weights,
            averaged_weights=weights.clone(),
            first_moment=torch.zeros_like(weights),
            second_moment=torch.zeros_like(weights),
            optimizer_steps=torch.zeros((), dtype=torch.float32, device=weights.device),
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by name, not copied."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @torch.no_grad()
    def step(
        self,
        gradient: torch.Tensor,
        point: PointConfig,
        tokens: int,
        batch_tokens: int,
        world: World = ALONE,
        rate_factor: float = 1.0,
    ) -> torch.Tensor:
        """Take the step of `batch_tokens` that brings the run to `tokens`, each process for its part.

        `rate_factor` is the cooldown's, of the learning rate. Changes `gradient` in place; returns the norm of the
        whole before that, without waiting for the device.
        """
        norm = clip(gradient, point.optimizer.gradient_clip, world)
        rate = learning_rate(point.learning_rate, tokens, point.optimizer.warmup_tokens)
        self._adamw(gradient, point, rate * rate_factor)
        limit = point.evaluation.averaging_tokens
        take_into_average(self.averaged_weights, self.weights, tokens, batch_tokens, limit)
        return norm

    def _adamw(self, gradient: torch.Tensor, point: PointConfig, rate: float) -> None:
        """Decoupled weight decay on every weight, which is also torch's default."""
        config = point.optimizer
        # The functional form: the state is ours, in flat vectors, and so is what a checkpoint holds of it.
        adamw(
            [self.weights],
            [gradient],
            [self.first_moment],
            [self.second_moment],
            [],
            [self.optimizer_steps],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=config.beta1,
            beta2=second_moment_decay(point),
            lr=rate,
            weight_decay=weight_decay(point),
            eps=config.epsilon,
        )


def second_moment_decay(point: PointConfig) -> float:
    """beta2 of one step: as configured, or so that its time constant in tokens is."""
    constant = point.optimizer.second_moment_tokens
    return math.exp(-_batch_tokens(point) / constant) if constant else point.optimizer.beta2


def weight_decay(point: PointConfig) -> float:
    """As configured, or so that weights decay with the configured time constant in tokens at the peak
    learning rate: a step takes away learning rate x weight decay of them."""
    constant = point.optimizer.weight_decay_tokens
    if not constant:
        return point.optimizer.weight_decay
    return _batch_tokens(point) / (constant * point.learning_rate)


def time_constants(point: PointConfig) -> TimeConstants:
    """Over how many tokens the point's optimizer forgets."""
    decay = point.learning_rate * weight_decay(point)
    return TimeConstants(
        first_moment_tokens=_constant(point.optimizer.beta1, point),
        second_moment_tokens=_constant(second_moment_decay(point), point),
        weight_decay_tokens=_batch_tokens(point) / decay if decay else None,
    )


def _constant(beta: float, point: PointConfig) -> float | None:
    """Of an average that keeps `beta` of itself at each step; None where it keeps nothing."""
    return _batch_tokens(point) / -math.log(beta) if beta else None


def _batch_tokens(point: PointConfig) -> int:
    return point.batch_size * point.sequence_length


def learning_rate(peak: float, tokens: int, warmup_tokens: int) -> float:
    """Rate of the step that brings the run to `tokens`: linear up to `warmup_tokens`, then constant."""
    return peak * min(1.0, tokens / warmup_tokens) if warmup_tokens else peak


def take_into_average(
    average: torch.Tensor,
    weights: torch.Tensor,
    tokens: int,
    batch_tokens: int,
    averaging_tokens: int = 0,
) -> None:
    """Move `average` in place towards the weights after the step of `batch_tokens` that brought the
    run to `tokens`. `averaging_tokens` bounds the time constant; 0: by AVERAGING_SHARE alone."""
    constant = AVERAGING_SHARE * tokens
    if averaging_tokens:
        constant = min(constant, averaging_tokens)
    average.lerp_(weights, -math.expm1(-batch_tokens / constant))


def clip(gradient: torch.Tensor, largest_norm: float, world: World = ALONE) -> torch.Tensor:
    """Scale the gradient whose part `gradient` is in place to a norm of at most `largest_norm`; returns the
    norm before."""
    norm: torch.Tensor = torch.linalg.vector_norm(gradient)
    if world.size > 1:
        squares = norm.square()
        world.sum(squares)
        norm = squares.sqrt()
    gradient.mul_((largest_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
