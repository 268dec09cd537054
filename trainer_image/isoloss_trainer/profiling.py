"""A trace, or a snapshot of an accelerator's memory, of chosen steps: for those who look into the trainer.

What fails here is named in the log and changes nothing of the run.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import torch

from isoloss_contract import layout
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.termination import BadConfiguration
from isoloss_trainer.world import World

TRACE_VARIABLE = "ISOLOSS_TRACE_STEPS"
"""Steps to trace, counted from 1, such as 20-22."""
MEMORY_VARIABLE = "ISOLOSS_MEMORY_STEPS"
"""Steps whose allocations on an accelerator are noted."""
MEMORY_ENTRIES = 200_000
"""Allocations that a snapshot remembers; the latest ones are kept."""


@contextmanager
def trace(file: Path, world: World) -> Iterator[None]:
    """Write to `file` what CPU and accelerator do in the block, by torch.profiler, as Perfetto and chrome://tracing
    read it."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU]
    if not world.on_cpu:
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds, record_shapes=True) as profiler:
        yield
    profiler.export_chrome_trace(str(file))


@contextmanager
def memory_snapshot(file: Path, world: World) -> Iterator[None]:
    """Write to `file` who allocates what on the accelerator in the block, as https://pytorch.org/memory_viz draws it.
    Raises RuntimeError on a CPU."""
    if world.on_cpu:
        raise RuntimeError("memory snapshots are of CUDA devices; this run is on the CPU")
    torch.cuda.memory._record_memory_history(max_entries=MEMORY_ENTRIES)
    yield
    plain = file.with_suffix("")
    torch.cuda.memory._dump_snapshot(str(plain))  # type: ignore[no-untyped-call]
    torch.cuda.memory._record_memory_history(enabled=None)
    file.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


Record = Callable[[Path, World], AbstractContextManager[None]]


class Recordings:
    """All that the environment asks for. Raises BadConfiguration for steps that are none."""

    def __init__(self, attempt: Attempt) -> None:
        self._all = (
            _Recording(attempt, TRACE_VARIABLE, "trace.json.gz", trace),
            _Recording(attempt, MEMORY_VARIABLE, "memory.pickle.gz", memory_snapshot),
        )

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around step `number`."""
        for recording in self._all:
            recording.begin(number)
        yield
        for recording in self._all:
            recording.end(number)

    def close(self) -> None:
        """Write what was begun and is not finished: the run ends before the last of the steps."""
        for recording in self._all:
            recording.close()


class _Recording:
    """What happens in the steps that `variable` names, in a file in the point's folder in the store."""

    def __init__(self, attempt: Attempt, variable: str, suffix: str, record: Record) -> None:
        self._attempt, self._suffix, self._record = attempt, suffix, record
        first, last = steps_of(variable) or (0, -1)
        # Only rank 0 writes to the store.
        self._wanted = range(first, last + 1) if attempt.world.is_first else range(0)
        self._made: list[int] = []
        self._file = attempt.scratch / f"recording.{suffix}"
        self._block = ExitStack()

    def begin(self, number: int) -> None:
        if number not in self._wanted:
            return
        if not self._made:
            block = self._record(self._file, self._attempt.world)
            self._guarded(lambda: self._block.enter_context(block))
        self._made.append(number)

    def end(self, number: int) -> None:
        if self._wanted and number == self._wanted[-1]:
            self.close()

    def close(self) -> None:
        """Write what there is, if the steps were begun."""
        if self._wanted and self._made:
            self._guarded(self._write)
        self._wanted = range(0)

    def _guarded(self, call: Callable[[], None]) -> None:
        with self._attempt.log.survived("recording-failed", kind=self._suffix):
            call()
            return
        self._wanted = range(0)

    def _write(self) -> None:
        self._block.close()
        task, store = self._attempt.task, self._attempt.store
        steps = f"{self._made[0]}-{self._made[-1]}"
        name = f"attempt-{task.claimant.attempt}-steps-{steps}.{self._suffix}"
        path = f"{layout.point_recordings(task.point.key)}/{name}"
        self._attempt.fence.check()
        store.write(path, self._file.read_bytes())
        self._file.unlink()
        self._attempt.log.event("recording", written=store.location(path))


def steps_of(variable: str) -> tuple[int, int] | None:
    """First and last step that an environment variable names ("20" or "20-22"); None if it is not set.

    Raises BadConfiguration.
    """
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise BadConfiguration(
            "BadVariable",
            f"{variable} is {text!r}: give steps counted from 1, such as 20 or 20-22",
            "podTemplate",
        )
    return first, last
