"""The processes that train one point together: one per accelerator, summing gradients.

Alone, every operation here is nothing. torchrun's environment variables say who is who; our own
launcher (launch.py) sets the same ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class World:
    """This process's place among `size`. Only rank 0 writes to the store."""

    rank: int
    size: int
    device: torch.device

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

    def share(self, count: int) -> slice:
        """This process's part of `count` items: contiguous, sizes differing by one at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def leave(self) -> None:
        """Tear down what joining set up."""
        if self.size > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def join() -> World:
    """The world this process was started in, on its own accelerator where there is one."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    if not cuda:
        device = torch.device("cpu")
    else:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if size > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    return World(rank, size, device)
