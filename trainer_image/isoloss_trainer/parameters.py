"""All weights of a model in one flat buffer, gradients likewise.

Optimizer step, clipping, averaging and the sum over devices are then single operations instead of
loops over hundreds of tensors. With bfloat16 compute, the model uses a bfloat16 copy of the float32
master weights.

Of several processes, each has the master weights of its own part of the buffer, and with them the
optimizer's state (ZeRO, stage 1: Rajbhandari et al. 1910.02054): the sum of the gradients hands each
process its part (gradient_sum.py), and publishing the weights joins the parts. Together these move about as
many bytes as a sum that every process gets whole.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import nn

from isoloss_trainer.gradient_sum import GradientSum
from isoloss_trainer.named_tensors import Tensors
from isoloss_trainer.world import World

ALIGNMENT = 64
"""In elements: grouped matrix products need their operands on 16-byte boundaries."""
SWAPPED = 2**24
"""Elements exchanged at a time."""
EVERYTHING = slice(None)
"""Of a flat vector."""


class FlatParameters:
    """Makes the parameters of `model` views into one buffer of `size` elements, and their gradients into
    another.

    `master` is float32: this process's part of the weights, all of them where it is alone. The padding
    between parameters is zero and stays zero.
    """

    def __init__(self, model: nn.Module, compute: torch.dtype, world: World) -> None:
        named = dict(model.named_parameters())
        self._names, self._parameters = list(named), list(named.values())
        self._world = world
        sizes = [-(-p.numel() // ALIGNMENT) * ALIGNMENT for p in self._parameters]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        unit = ALIGNMENT * world.size
        self.size = -(-sum(sizes) // unit) * unit
        weights = torch.zeros(self.size, dtype=torch.float32, device=self._parameters[0].device)
        for parameter, view in self._views(weights):
            view.copy_(parameter.detach())
        self._mixed = compute != torch.float32
        self._compute = weights.to(compute) if self._mixed else weights
        part = weights[world.part(self.size)]
        self.master = part.clone() if self._mixed and world.size > 1 else part
        self._gradient = torch.zeros_like(weights)
        self._compute_gradient = torch.zeros_like(self._compute) if self._mixed else self._gradient
        for parameter, view in self._views(self._compute):
            parameter.data = view
        for parameter, view in self._views(self._compute_gradient):
            parameter.grad = view
        places = {
            p: slice(offset, offset + p.numel())
            for p, offset in zip(self._parameters, self._offsets, strict=True)
        }
        self._sum = GradientSum(self._gradient, places, self.collect_gradient, world)

    def _views(self, buffer: torch.Tensor) -> list[tuple[nn.Parameter, torch.Tensor]]:
        return [
            (p, buffer[offset : offset + p.numel()].view(p.shape))
            for p, offset in zip(self._parameters, self._offsets, strict=True)
        ]

    def named(self, buffer: torch.Tensor) -> Tensors:
        """The parts of a vector of `size` elements by parameter name, in their shapes, not copied."""
        views = self._views(buffer)
        return {name: view for name, (_, view) in zip(self._names, views, strict=True)}

    def collect_gradient(self, stretch: slice = EVERYTHING) -> None:
        """Add a micro-batch's bfloat16 gradients to the float32 sum; call after each micro-batch but the last."""
        if self._mixed:
            self._gradient[stretch].add_(self._compute_gradient[stretch])
            self._compute_gradient[stretch].zero_()

    def clear_gradient(self) -> None:
        """Zero the gradients; call before each step."""
        self._gradient.zero_()
        if self._mixed:
            self._compute_gradient.zero_()

    def summing_gradient(self) -> AbstractContextManager[None]:
        """The block of a step's last backward pass: gradients are sent to their processes as they are ready."""
        return self._sum.overlapping()

    def finish_sum(self) -> None:
        """Send the rest and wait; all processes call this after each attempt at a step, also one that failed."""
        self._sum.finish()

    @property
    def summed_gradient(self) -> torch.Tensor:
        """The gradient summed over all processes, of this process's part, once the sum is finished."""
        return self._gradient[self._world.part(self.size)]

    def publish(self) -> None:
        """Copy all processes' master weights to the model; call in each after a change of `master`."""
        mine = self._compute[self._world.part(self.size)]
        if self._mixed:
            mine.copy_(self.master)
        self._world.join_parts(self._compute, mine)

    def swap(self, other: torch.Tensor) -> None:
        """Exchange the weights with `other`, in place, by pieces: a copy of all might not fit."""
        pairs = zip(torch.split(self.master, SWAPPED), torch.split(other, SWAPPED), strict=True)
        for mine, theirs in pairs:
            kept = mine.clone()
            mine.copy_(theirs)
            theirs.copy_(kept)
        self.publish()
