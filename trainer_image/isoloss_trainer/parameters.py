"""All weights of a model in one flat buffer, gradients likewise.

Optimizer step, clipping, averaging and the sum over devices are then single operations instead of
loops over hundreds of tensors. With bfloat16 compute, the model uses a bfloat16 copy of the float32
master weights.
"""

from __future__ import annotations

import torch
from torch import nn

ALIGNMENT = 64
"""In elements: grouped matrix products need their operands on 16-byte boundaries."""


SWAPPED = 2**24
"""Elements exchanged at a time."""


class FlatParameters:
    """Makes the parameters of `model` views into one buffer, and their gradients into another.

    `master` and `gradient` are float32 vectors of `size` elements on the model's device. The padding
    between parameters is zero and stays zero.
    """

    def __init__(self, model: nn.Module, compute: torch.dtype) -> None:
        self._parameters = list(model.parameters())
        device = self._parameters[0].device
        sizes = [-(-p.numel() // ALIGNMENT) * ALIGNMENT for p in self._parameters]
        self.size = sum(sizes)
        self.master = torch.zeros(self.size, dtype=torch.float32, device=device)
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        for parameter, view in self._views(self.master):
            view.copy_(parameter.detach())
        self.gradient = torch.zeros_like(self.master)
        self._mixed = compute != torch.float32
        self._compute = self.master.to(compute) if self._mixed else self.master
        self._compute_gradient = torch.zeros_like(self._compute) if self._mixed else self.gradient
        for parameter, view in self._views(self._compute):
            parameter.data = view
        for parameter, view in self._views(self._compute_gradient):
            parameter.grad = view

    def _views(self, buffer: torch.Tensor) -> list[tuple[nn.Parameter, torch.Tensor]]:
        return [
            (p, buffer[offset : offset + p.numel()].view(p.shape))
            for p, offset in zip(self._parameters, self._offsets, strict=True)
        ]

    def collect_gradient(self) -> None:
        """Add a micro-batch's bfloat16 gradients to the float32 sum; call after each micro-batch."""
        if self._mixed:
            self.gradient += self._compute_gradient
            self._compute_gradient.zero_()

    def clear_gradient(self) -> None:
        """Zero the gradients; call before each step."""
        self.gradient.zero_()
        if self._mixed:
            self._compute_gradient.zero_()

    def publish(self) -> None:
        """Copy the master weights to the model; call after each change of `master`."""
        if self._mixed:
            self._compute.copy_(self.master)

    def swap(self, other: torch.Tensor) -> None:
        """Exchange the weights with `other`, in place, by pieces: a copy of all might not fit."""
        pairs = zip(torch.split(self.master, SWAPPED), torch.split(other, SWAPPED), strict=True)
        for mine, theirs in pairs:
            kept = mine.clone()
            mine.copy_(theirs)
            theirs.copy_(kept)
        self.publish()
