"""A trace, or a snapshot of an accelerator's memory, of chosen steps: for those who look into the trainer.

What fails here is named in the log and changes nothing of the run.
"""

from __future__ import annotations

import gzip
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from isoloss_contract import layout
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.termination import BadConfiguration

TRACE_VARIABLE = "ISOLOSS_TRACE_STEPS"
"""Steps to trace, counted from 1, such as 20-22."""
MEMORY_VARIABLE = "ISOLOSS_MEMORY_STEPS"
"""Steps whose allocations on an accelerator are noted."""
MEMORY_ENTRIES = 200_000
"""Allocations that a snapshot remembers; the latest ones are kept."""


class StepRecording(ABC):
    """Records what happens in steps `first` to `last` into a file in the point's folder in the store."""

    def __init__(self, attempt: Attempt, variable: str, suffix: str) -> None:
        self._attempt, self._suffix = attempt, suffix
        self._steps = steps_of(variable)
        # Only rank 0 writes to the store.
        self._done = self._steps is None or not attempt.world.is_first
        self._begun: int | None = None
        self._last = 0

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around step `number`, if it may be one of those."""
        if self._done or self._steps is None or not self._steps[0] <= number <= self._steps[1]:
            yield
            return
        if self._begun is None:
            self._begun = number
            self._guarded(self._start)
        self._last = number
        yield
        if number == self._steps[1]:
            self.close()

    def close(self) -> None:
        """Write what there is, if the steps were begun."""
        if self._begun is None or self._done:
            return
        self._done = True
        self._guarded(self._write)

    def _guarded(self, call: Any) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (whatever it is, the run goes on)
            self._done = True
            reason = f"{type(error).__name__}: {error}"[:300]
            self._attempt.log.event("recording-failed", kind=self._suffix, reason=reason)

    def _write(self) -> None:
        task = self._attempt.task
        name = f"attempt-{task.claimant.attempt}-steps-{self._begun}-{self._last}.{self._suffix}"
        local = self._attempt.scratch / name
        self._finish(local)
        path = f"{layout.point_recordings(task.point.key)}/{name}"
        self._attempt.fence.check()
        self._attempt.store.write(path, local.read_bytes())
        local.unlink()
        self._attempt.log.event("recording", written=self._attempt.store.location(path))

    @abstractmethod
    def _start(self) -> None:
        """Begin to record."""

    @abstractmethod
    def _finish(self, file: Path) -> None:
        """Stop recording, and write what was recorded to `file`."""


class Trace(StepRecording):
    """What CPU and accelerator did, by torch.profiler, as Perfetto and chrome://tracing read it."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt, TRACE_VARIABLE, "trace.json.gz")
        self._profiler: Any = None

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU]
        if not self._attempt.world.on_cpu:
            kinds.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=kinds, record_shapes=True)
        self._profiler.start()

    def _finish(self, file: Path) -> None:
        self._profiler.stop()
        self._profiler.export_chrome_trace(str(file))


class MemorySnapshot(StepRecording):
    """Who allocated what on the accelerator, as https://pytorch.org/memory_viz draws it."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt, MEMORY_VARIABLE, "memory.pickle.gz")

    def _start(self) -> None:
        if self._attempt.world.on_cpu:
            raise RuntimeError("memory snapshots are of CUDA devices; this run is on the CPU")
        torch.cuda.memory._record_memory_history(max_entries=MEMORY_ENTRIES)

    def _finish(self, file: Path) -> None:
        plain = file.with_suffix("")
        torch.cuda.memory._dump_snapshot(str(plain))  # type: ignore[no-untyped-call]
        torch.cuda.memory._record_memory_history(enabled=None)
        file.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()


class Recordings:
    """All that the environment asks for. Raises BadConfiguration for steps that are none."""

    def __init__(self, attempt: Attempt) -> None:
        self._all: tuple[StepRecording, ...] = (Trace(attempt), MemorySnapshot(attempt))

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around step `number`."""
        trace, memory = self._all
        with trace.step(number), memory.step(number):
            yield

    def close(self) -> None:
        """Write what was begun and is not finished: the run ends before the last of the steps."""
        for recording in self._all:
            recording.close()


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
