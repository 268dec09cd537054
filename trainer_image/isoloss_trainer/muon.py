"""Muon: the matrices of the layers move by their orthogonalised momentum, all else by AdamW.

The method is Jordan et al.'s (2024, kellerjordan.github.io/posts/muon); updates are scaled to AdamW's root
mean square, so that one learning rate serves both (Liu et al. 2502.16982). A matrix is orthogonalised whole, but its weights and
momentum lie in the flat vector's parts: each process moves the momentum of its own part, all exchange
them, and each orthogonalises those matrices of which it has a piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

UPDATE_RMS = 0.2
"""Root mean square of an entry of AdamW's update, as Liu et al. measured it."""
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Jordan's coefficients: singular values reach 0.7 to 1.2 within NEWTON_SCHULZ_STEPS."""
NEWTON_SCHULZ_STEPS = 5
SMALLEST_NORM = 1e-7
ORTHOGONALISED = 2**24
"""Elements orthogonalised at a time: stacks of many experts would take as much memory again several times."""


@dataclass(frozen=True)
class MatrixStack:
    """Equal matrices that follow each other in the flat vector."""

    start: int
    """Index of the first element."""
    count: int
    rows: int
    columns: int

    @property
    def each(self) -> int:
        """Elements of one matrix."""
        return self.rows * self.columns

    @property
    def stop(self) -> int:
        """Index behind the last element."""
        return self.start + self.count * self.each

    def within(self, part: slice) -> slice:
        """The stretch of the vector that this stack and `part` have in common; empty where none."""
        start, stop = max(self.start, part.start), min(self.stop, part.stop)
        return slice(start, max(start, stop))

    def touched(self, part: slice) -> Iterator[MatrixStack]:
        """The matrices with elements in `part`, in stacks of about ORTHOGONALISED elements."""
        common = self.within(part)
        if common.start == common.stop:
            return
        first = (common.start - self.start) // self.each
        last = -(-(common.stop - self.start) // self.each)
        at_once = max(1, ORTHOGONALISED // self.each)
        for number in range(first, last, at_once):
            count = min(at_once, last - number)
            yield MatrixStack(self.start + number * self.each, count, self.rows, self.columns)


def matrix_stacks(network: Any, offsets: dict[str, int]) -> tuple[MatrixStack, ...]:
    """The matrices of the layers of a transformers model by their place in the flat vector.

    Neither embedding nor head, whose rows belong to single tokens. Gate and up projections of experts, stored as
    one, are two.
    """
    ends = {id(network.get_input_embeddings().weight), id(network.get_output_embeddings().weight)}
    stacks = []
    for name, parameter in network.named_parameters():
        if parameter.dim() < 2 or id(parameter) in ends:
            continue
        rows, columns = parameter.shape[-2:]
        if name.endswith("gate_up_proj"):
            rows //= 2
        count = parameter.numel() // (rows * columns)
        stacks.append(MatrixStack(offsets[name], count, rows, columns))
    return tuple(stacks)


def between(stacks: tuple[MatrixStack, ...], part: slice) -> list[slice]:
    """The stretches of `part` that belong to no matrix, as indices into the part."""
    stretches, position = [], part.start
    for stack in sorted(stacks, key=lambda stack: stack.start):
        covered = stack.within(part)
        if covered.start < covered.stop:
            stretches.append(slice(position - part.start, covered.start - part.start))
            position = covered.stop
    stretches.append(slice(position - part.start, part.stop - part.start))
    return [stretch for stretch in stretches if stretch.start < stretch.stop]


@dataclass(frozen=True)
class Muon:
    """The matrices of a flat vector, and the part of it that this process has."""

    stacks: tuple[MatrixStack, ...]
    part: slice
    join: Callable[[torch.Tensor], torch.Tensor]
    """From the parts of all processes to the whole vector, which is overwritten by the next gradient."""
    precision: torch.dtype
    """Of the products that orthogonalise."""

    @torch.no_grad()
    def step(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        momentum: torch.Tensor,
        *,
        decay: float,
        rate: float,
        weight_decay: float,
    ) -> None:
        """Move this process's part of the matrices; all processes call this.

        `decay` is the momentum's. Overwrites `gradient` with Nesterov's look ahead.
        """
        for stack in self.stacks:
            mine = self._in_part(stack.within(self.part))
            momentum[mine].lerp_(gradient[mine], 1 - decay)
            gradient[mine].lerp_(momentum[mine], decay)
        whole = self.join(gradient)
        for stack in self.stacks:
            for some in stack.touched(self.part):
                common = some.within(self.part)
                matrices = whole[some.start : some.stop].view(some.count, some.rows, some.columns)
                update = orthogonalised(matrices, self.precision).flatten()
                update = update[common.start - some.start : common.stop - some.start]
                scale = rate * UPDATE_RMS * math.sqrt(max(some.rows, some.columns))
                own = weights[self._in_part(common)]
                own.mul_(1 - rate * weight_decay).sub_(update, alpha=scale)

    def _in_part(self, stretch: slice) -> slice:
        return slice(stretch.start - self.part.start, stretch.stop - self.part.start)


def orthogonalised(matrices: torch.Tensor, precision: torch.dtype) -> torch.Tensor:
    """The orthogonal matrix nearest to each of `matrices` [n, rows, columns], about: singular values become
    0.7 to 1.2. Newton-Schulz iteration of fifth order (Jordan et al. 2024), in `precision`."""
    a, b, c = NEWTON_SCHULZ
    found = matrices.to(precision, copy=True)
    tall = found.shape[-2] > found.shape[-1]
    if tall:
        found = found.mT
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = found @ found.mT
        found = torch.baddbmm(
            found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a
        )
    return found.mT if tall else found
