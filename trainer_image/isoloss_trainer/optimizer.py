"""The optimizer step: clipping, AdamW at the schedule's learning rate, and the average of the weights.

The average stands in for the decay of the learning rate that a run never gets. Its time constant is
counted in tokens, so that it means the same at every batch size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch.distributed.tensor import DTensor

from isoloss_contract.records import CooldownConfig, PointConfig, TimeConstants
from isoloss_trainer.sharding import local

AVERAGING_SHARE = 0.1
"""The average's time constant is at most this share of the tokens seen: it must forget the start."""


def adamw(weights: Iterable[torch.nn.Parameter], point: PointConfig) -> torch.optim.AdamW:
    """Decoupled weight decay on every weight, which is also torch's default. Its state is there at once, zero."""
    optimizer = torch.optim.AdamW(
        weights,
        betas=(point.optimizer.beta1, second_moment_decay(point)),
        weight_decay=weight_decay(point),
        eps=point.optimizer.epsilon,
        fused=True,
    )
    for weight in optimizer.param_groups[0]["params"]:
        optimizer.state[weight] = {
            "step": torch.zeros((), dtype=torch.float32, device=weight.device),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
    return optimizer


def cooldown_factors(cooldown: CooldownConfig, steps: int) -> list[float]:
    """What each of the `steps` of a cooldown multiplies the learning rate by.

    The shape in the middle of each step: so the rate summed over tokens is nearly the same at every batch
    size, and no step is lost to a rate of zero. Linear decay and 1 - sqrt(x): Hägele et al. 2405.18392.
    """
    shares = ((number + 0.5) / steps for number in range(steps))
    if cooldown.shape == "Linear":
        return [1.0 - share for share in shares]
    return [1.0 - math.sqrt(share) for share in shares]


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
    """Time constant of an average that keeps `beta` of itself at each step; None if it keeps nothing."""
    return _batch_tokens(point) / -math.log(beta) if beta else None


def _batch_tokens(point: PointConfig) -> int:
    return point.batch_size * point.sequence_length


def learning_rate(peak: float, tokens: int, warmup_tokens: int) -> float:
    """Rate of the step that brings the run to `tokens`: linear up to `warmup_tokens`, then constant."""
    return peak * min(1.0, tokens / warmup_tokens) if warmup_tokens else peak


@torch.no_grad()
def take_into_average(
    averages: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    tokens: int,
    batch_tokens: int,
    averaging_tokens: int = 0,
) -> None:
    """Move `averages` in place towards the weights after the step of `batch_tokens` that brought the
    run to `tokens`. `averaging_tokens` bounds the time constant; 0: by AVERAGING_SHARE alone."""
    constant = AVERAGING_SHARE * tokens
    if averaging_tokens:
        constant = min(constant, averaging_tokens)
    share = -math.expm1(-batch_tokens / constant)
    if averages:
        torch._foreach_lerp_(list(map(local, averages)), list(map(local, weights)), share)


def clip(weights: Sequence[torch.nn.Parameter], largest_norm: float) -> torch.Tensor:
    """Scale the gradients of `weights`, of all processes, in place to a norm of at most `largest_norm`; returns the
    norm before, without waiting for the device."""
    norm = torch.nn.utils.clip_grad_norm_(weights, largest_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
