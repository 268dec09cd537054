"""The processes that train one point together: one per accelerator, summing gradients.

The environment variables are torchrun's; our own launcher (launch.py) sets the same ones. They are
read here and nowhere else. torch is imported on joining: before that, a process may find that there
is nothing to do, and importing torch takes seconds.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from isoloss_trainer.termination import BadConfiguration

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


Found = TypeVar("Found")
RANK_VARIABLE = "RANK"
REFUSALS_VARIABLE = "ISOLOSS_REFUSALS"
"""How often memory was refused to these processes before (launch.py)."""
DEVICES = Path("/dev")
FETCH_PATIENCE = timedelta(hours=6)
"""Processes wait for the one that fetches hundreds of gigabytes, and for those that hold a copy."""
BACKENDS = "cpu:gloo,cuda:nccl"
"""gloo in addition to nccl: agreeing on a number must not wait for the accelerator."""


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
    has_address: bool = False
    """Whether it is known where rank 0 waits for the others (MASTER_ADDR); if not, they meet through the store."""
    refusals: int = 0
    """How often memory was refused to these processes before."""
    devices_per_copy: int = 1
    """If a model takes several accelerators, the first of as many processes works with them all."""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> World:
        """The place that torchrun's or our launcher's variables name; alone without them."""
        return cls(
            rank=int(environment.get(RANK_VARIABLE, "0")),
            size=int(environment.get("WORLD_SIZE", "1")),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
            has_address="MASTER_ADDR" in environment,
            refusals=int(environment.get(REFUSALS_VARIABLE, "0")),
        )

    def joined(
        self, patience: timedelta | None = None, meet: Callable[[], Store] | None = None
    ) -> World:
        """The same place once all processes have met, on its own accelerator if there is one.

        `patience`: how long to wait for other processes in a collective; default: torch's minutes. `meet` returns
        what all of them share, if no address is known.
        Raises BadConfiguration if there is an accelerator that torch cannot use.
        """
        import torch

        cuda = torch.cuda.is_available()
        if not cuda and visible_accelerators():
            raise BadConfiguration(
                "CudaUnavailable",
                "there is an NVIDIA device, but torch cannot use it: "
                f"{why_unusable()} (torch {torch.__version__}, whose driver is in docs/reference/support.md); set "
                "CUDA_VISIBLE_DEVICES to nothing to train on the CPU",
                "podTemplate",
            )
        if cuda:
            torch.cuda.set_device(self.local_rank)
        if self.size > 1 and not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                BACKENDS if cuda else "gloo",
                timeout=patience,
                store=None if meet is None else meet(),
                rank=self.rank,
                world_size=self.size,
            )
        return replace(self, device=f"cuda:{self.local_rank}" if cuda else "cpu")

    def leave(self) -> None:
        """Undo `joined`, and `mesh`."""
        import torch

        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this process writes and logs for all."""
        return self.rank == 0

    @property
    def spans_pods(self) -> bool:
        """Whether some of the others are in other pods, which this pod's launcher cannot start again."""
        return self.size > 1 and not self.has_address

    @property
    def on_cpu(self) -> bool:
        """Whether the model is computed without an accelerator."""
        return self.device == "cpu"

    @property
    def device_type(self) -> str:
        """ "cpu" or "cuda"."""
        return self.device.partition(":")[0]

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` by its sum over all processes."""
        if self.size > 1:
            from torch.distributed import all_reduce

            all_reduce(tensor)

    def mesh(self, device_type: str) -> DeviceMesh:
        """All processes, for tensors on devices of that type of which each has a part; also of a process that is
        alone."""
        from torch.distributed import init_process_group, is_initialized
        from torch.distributed.device_mesh import init_device_mesh

        if not is_initialized():
            from torch._C._distributed_c10d import HashStore

            backend = "gloo" if self.on_cpu else BACKENDS
            init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        return init_device_mesh(device_type, (self.size,))

    def host_group(self) -> ProcessGroup | None:
        """Another way to talk among all processes, for a thread of its own; None for a process that is alone. All
        processes call this at the same place."""
        if self.size == 1:
            return None
        from torch.distributed import new_group

        return cast("ProcessGroup", new_group(backend="gloo"))

    def of_first(self, call: Callable[[], Found]) -> Found:
        """What `call` returns in rank 0, in every process, or raises there; the others do not call it."""
        found = self.of_all(call if self.is_first else lambda: None)
        return cast("Found", found[0])

    def of_all(self, call: Callable[[], Found], group: ProcessGroup | None = None) -> list[Found]:
        """What `call` returns in each process, in every process; raises there what it raised in the first that failed.
        A thread of its own has a `group` of its own (`host_group`)."""
        if self.size == 1:
            return [call()]
        from torch.distributed import all_gather_object

        mine: list[Any] = [None, None]
        try:
            mine[0] = call()
        except BaseException as error:  # noqa: BLE001 (raised below, in every process)
            mine[1] = _as_sent(error)
        answers: list[Any] = [None] * self.size
        all_gather_object(answers, mine, group=group)
        for _, failure in answers:
            if failure is not None:
                raise failure
        return [found for found, _ in answers]

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
        """The same processes if each copy of the model takes `devices` accelerators."""
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


def why_unusable() -> str:
    """Why torch cannot use a device that is there, in its own words: a driver that is too old, or a build without CUDA."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error)[:300]
    return "it finds none"


def _as_sent(error: BaseException) -> BaseException:
    """The error as other processes get it: its words in a RuntimeError if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 (whatever its class raises)
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
