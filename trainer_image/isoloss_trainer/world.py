"""The processes that train one point together: one per accelerator, summing gradients.

Alone, every operation here is nothing. torchrun's environment variables say who is who; our own
launcher (launch.py) sets the same ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import timedelta

import torch


@dataclass(frozen=True)
class World:
    """This process's place among `size`. Only rank 0 writes to the store."""

    rank: int
    size: int
    device: torch.device
    devices_per_copy: int = 1
    """Where a model takes several accelerators, the first of as many processes works with them all."""

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all."""
        return self.rank == 0

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` by its sum over all processes."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set in any process: all get the same answer."""
        if self.size == 1:
            return flag
        count = torch.tensor([int(flag)], device=self.device)
        self.sum(count)
        return bool(count.item())

    def wait(self) -> None:
        """Wait until every process has come here."""
        self.any(False)

    def with_copies_on(self, devices: int) -> World:
        """The same processes where each copy of the model takes `devices` accelerators."""
        return replace(self, devices_per_copy=devices)

    @property
    def _copies(self) -> int:
        return max(1, self.size // self.devices_per_copy)

    @property
    def holds_copy(self) -> bool:
        """Whether this process has the model; others only take part in sums."""
        number, remainder = divmod(self.rank, self.devices_per_copy)
        return remainder == 0 and number < self._copies

    def share(self, count: int) -> slice:
        """This process's part of `count` items: contiguous, sizes differing by one at most among the
        processes that have the model, empty for others."""
        if not self.holds_copy:
            return slice(0, 0)
        number, copies = self.rank // self.devices_per_copy, self._copies
        return slice(count * number // copies, count * (number + 1) // copies)

    def leave(self) -> None:
        """Tear down what joining set up."""
        if self.size > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def join(patience: timedelta | None = None) -> World:
    """The world this process was started in, on its own accelerator where there is one.

    `patience`: how long a process waits for the others' part of a sum; default: torch's minutes.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    if not cuda:
        device = torch.device("cpu")
    else:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if size > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if cuda else "gloo", timeout=patience)
    return World(rank, size, device)
