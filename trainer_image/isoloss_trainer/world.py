"""The processes that train one point together: one per accelerator, summing gradients.

The environment variables are torchrun's; our own launcher (launch.py) sets the same ones. They are
read here and nowhere else. torch is imported on joining: before that, a process may find that there
is nothing to do, and importing torch takes seconds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from isoloss_trainer.termination import BadConfiguration

if TYPE_CHECKING:
    import torch
    from torch.distributed import Work

RANK_VARIABLE = "RANK"
PIECE = 2**24
"""Numbers that processes hand to each other at a time where all of them might not fit beside the rest."""
DEVICES = Path("/dev")


def visible_accelerators() -> int:
    """Counted without torch, whose import takes seconds and whose use would hold the devices."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len([path for path in DEVICES.glob("nvidia*") if path.name[6:].isdigit()])


@dataclass(frozen=True)
class World:
    """This process's place among `size`; by default it is alone on the CPU.

    Every method is a no-op for a single process. Only rank 0 writes to the store.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    """As torch names it: "cpu" or "cuda:<local rank>"; known after `joined`."""
    local_rank: int = 0
    devices_per_copy: int = 1
    """Where a model takes several accelerators, the first of as many processes works with them all."""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> World:
        """The place that torchrun's or our launcher's variables name; alone without them."""
        return cls(
            rank=int(environment.get(RANK_VARIABLE, "0")),
            size=int(environment.get("WORLD_SIZE", "1")),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
        )

    def joined(self, patience: timedelta | None = None) -> World:
        """The same place once all processes have met, on its own accelerator where there is one.

        `patience`: how long to wait for other processes in a collective; default: torch's minutes.
        Raises BadConfiguration where there is an accelerator that torch cannot use.
        """
        import torch

        cuda = torch.cuda.is_available()
        if not cuda and visible_accelerators():
            raise BadConfiguration(
                "CudaUnavailable",
                f"there is an NVIDIA device, but torch {torch.__version__} cannot use it: the driver "
                "may be too old for its CUDA; set CUDA_VISIBLE_DEVICES to nothing to train on the CPU",
                "podTemplate",
            )
        if cuda:
            torch.cuda.set_device(self.local_rank)
        if self.size > 1 and not torch.distributed.is_initialized():
            # gloo beside nccl: agreeing on a number must not wait for the accelerator.
            backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
            torch.distributed.init_process_group(backend, timeout=patience)
        return replace(self, device=f"cuda:{self.local_rank}" if cuda else "cpu")

    def leave(self) -> None:
        """Undo `joined`."""
        if self.size == 1:
            return
        import torch

        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this process writes and logs for all."""
        return self.rank == 0

    @property
    def on_cpu(self) -> bool:
        """Whether the model is computed without an accelerator."""
        return self.device == "cpu"

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` by its sum over all processes."""
        if self.size > 1:
            from torch.distributed import all_reduce

            all_reduce(tensor)

    def part(self, count: int) -> slice:
        """This process's part of `count` numbers, which the number of processes divides."""
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def start_sum_for(self, owner: int, tensor: torch.Tensor) -> Work | None:
        """Begin to replace the `tensor` of process `owner` by its sum over all processes; wait for what is
        returned. What the others have in theirs means nothing then. All begin their sums in the same order."""
        if self.size == 1:
            return None
        from torch.distributed import reduce

        return reduce(tensor, dst=owner, async_op=True)

    def join_parts(self, full: torch.Tensor, mine: torch.Tensor) -> None:
        """Fill `full` with the parts that the processes have, in their order."""
        if self.size == 1:
            return
        from torch.distributed import all_gather_into_tensor

        all_gather_into_tensor(full, mine)

    def collect_parts(self, full: torch.Tensor | None, mine: torch.Tensor) -> None:
        """Fill rank 0's `full`, in the host's memory, with the parts that the processes have; others give None."""
        if self.size == 1:
            if full is not None:
                full.copy_(mine, non_blocking=True)
            return
        import torch
        from torch.distributed import gather

        for start in range(0, len(mine), PIECE):
            piece = mine[start : start + PIECE]
            if full is None:
                gather(piece)
                continue
            found = [torch.empty_like(piece) for _ in range(self.size)]
            gather(piece, found)
            for rank, theirs in enumerate(found):
                first = rank * len(mine) + start
                full[first : first + len(piece)].copy_(theirs, non_blocking=True)

    def hand_out_parts(self, full: torch.Tensor | None, mine: torch.Tensor) -> None:
        """Fill each process's `mine` from rank 0's `full`, in the host's memory; others give None."""
        if self.size == 1:
            if full is not None:
                mine.copy_(full)
            return
        from torch.distributed import scatter

        for start in range(0, len(mine), PIECE):
            piece = mine[start : start + PIECE]
            firsts = [rank * len(mine) + start for rank in range(self.size)]
            given = (
                [full[i : i + len(piece)].to(mine.device) for i in firsts]
                if full is not None
                else None
            )
            scatter(piece, given)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` by rank 0's."""
        if self.size > 1:
            from torch.distributed import broadcast

            broadcast(tensor, src=0)

    def text_of_first(self, text: str) -> str:
        """Rank 0's `text`, in every process; that of the others is not looked at."""
        if self.size == 1:
            return text
        import torch

        content = text.encode() if self.is_first else b""
        length = self.largest(len(content))
        if not length:
            return ""
        letters = torch.tensor(list(content.ljust(length)), dtype=torch.uint8)
        self.broadcast(letters)
        return bytes(letters.tolist()).decode()

    def largest(self, number: int) -> int:
        """The largest `number` of any process; every process gets the same answer."""
        if self.size == 1:
            return number
        import torch

        found = torch.tensor([number])
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        return int(found.item())

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set in any process; every process gets the same answer."""
        return bool(self.largest(int(flag)))

    def wait(self) -> None:
        """Block until every process has called this."""
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
        """This process's part of `count` items: contiguous, with sizes that differ by at most one
        among the processes that hold the model, empty for the others."""
        if not self.holds_copy:
            return slice(0, 0)
        number, copies = self.rank // self.devices_per_copy, self._copies
        return slice(count * number // copies, count * (number + 1) // copies)

    def rounds(self, count: int, size: int) -> int:
        """Parts of `size` items in the largest share of `count` items: the same for every process."""
        return math.ceil(math.ceil(count / self._copies) / size)
