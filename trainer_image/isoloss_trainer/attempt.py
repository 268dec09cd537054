"""One attempt at a point: its task, everything around it, and where its time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isoloss_contract.records import TrainTask
from isoloss_contract.store import Store
from isoloss_trainer.claim import Fence
from isoloss_trainer.log import Log
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import Interruption
from isoloss_trainer.world import World


@dataclass(frozen=True)
class Attempt:
    """What every part of a run may ask for."""

    task: TrainTask
    store: Store
    data: PreparedData
    scratch: Path
    fence: Fence
    world: World
    interruption: Interruption
    log: Log


class Stopwatch:
    """Seconds since it was made, and of the activities that were timed with it."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._activities: dict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        """Since the stopwatch was made."""
        return time.monotonic() - self._started

    def seconds_without(self, *activities: str) -> float:
        """As `seconds`, less those of these activities."""
        return self.seconds - sum(self._activities[activity] for activity in activities)

    @contextmanager
    def timing(self, activity: str) -> Iterator[None]:
        """Add the duration of the block to `activity`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._activities[activity] += time.monotonic() - started

    def shares(self) -> dict[str, float]:
        """Each activity's share of all time so far, as `<activity>_share`."""
        total = max(1e-9, self.seconds)
        return {f"{name}_share": spent / total for name, spent in self._activities.items()}
