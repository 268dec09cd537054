"""The sum of all processes' gradients, while the last backward pass of a step still computes some of them.

The flat vector is cut into buckets, each within the part of one process, which gets its sum. A bucket is sent once all
gradients in it are there and all buckets before it are sent. Every process sends them in the same order,
from the last to the first, which is about the order in which a backward pass finishes them: so a bucket's sum does
not depend on when its gradients are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from isoloss_trainer.world import World

if TYPE_CHECKING:
    from torch.distributed import Work

BUCKET = 2**23
"""Elements of a bucket at most: 32 MiB, enough that a network's latency hardly counts."""


class Bucket(NamedTuple):
    """A stretch of the flat vector, and the process in whose part it lies."""

    stretch: slice
    owner: int


def buckets(size: int, processes: int, largest: int = BUCKET) -> list[Bucket]:
    """Those of a vector of `size` elements, which `processes` divides, in the order in which they are sent."""
    each = size // processes
    found = [
        Bucket(slice(start, min(start + largest, (owner + 1) * each)), owner)
        for owner in range(processes)
        for start in range(owner * each, (owner + 1) * each, largest)
    ]
    return found[::-1]


class GradientSum:
    """Sums the flat vector `gradient` over all processes, each of which gets its own part.

    `places` says where in it each parameter's gradient is. `collect` is called for every stretch before it is sent.
    """

    def __init__(
        self,
        gradient: torch.Tensor,
        places: Mapping[nn.Parameter, slice],
        collect: Callable[[slice], None],
        world: World,
        largest: int = BUCKET,
    ) -> None:
        self._gradient, self._collect, self._world = gradient, collect, world
        alone = world.size == 1
        self._buckets = buckets(len(gradient), world.size, len(gradient) if alone else largest)
        self._touched = {
            parameter: [
                number
                for number, bucket in enumerate(self._buckets)
                if _overlap(place, bucket.stretch)
            ]
            for parameter, place in places.items()
        }
        self._missing = [0] * len(self._buckets)
        """Of each bucket: how many gradients the backward pass has yet to finish."""
        self._sent: list[Work | None] = []
        self._overlapping = False
        if not alone:
            for parameter in places:
                parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]

    @contextmanager
    def overlapping(self) -> Iterator[None]:
        """Send what the backward pass in this block finishes: the step's last one."""
        self._missing = [0] * len(self._buckets)
        for numbers in self._touched.values():
            for number in numbers:
                self._missing[number] += 1
        self._overlapping = True
        try:
            yield
        finally:
            self._overlapping = False

    def finish(self) -> None:
        """Send what is left and wait for everything; all processes call this once after each attempt at a step.

        What is left: all of it where a process had no sequence or its memory refused, and parameters without a
        gradient in the last backward pass. An accelerator waits, its process does not.
        """
        while len(self._sent) < len(self._buckets):
            self._send_next()
        for work in self._sent:
            if work is not None:
                work.wait()
        self._sent = []

    def _take(self, parameter: torch.Tensor) -> None:
        """A hook: the parameter's gradient is there."""
        if not self._overlapping:
            return
        for number in self._touched[parameter]:  # type: ignore[index]
            self._missing[number] -= 1
        while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
            self._send_next()

    def _send_next(self) -> None:
        stretch, owner = self._buckets[len(self._sent)]
        self._collect(stretch)
        self._sent.append(self._world.start_sum_for(owner, self._gradient[stretch]))


def _overlap(one: slice, other: slice) -> bool:
    return bool(one.start < other.stop and other.start < one.stop)
