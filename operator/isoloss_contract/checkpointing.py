"""What writing a training state takes, and how often that is worth while where nodes are preempted. Pure."""

import math
from dataclasses import dataclass

from isoloss_contract.memory import STATE_BYTES

STORE_BYTES_PER_SECOND = 2e8
"""What a store is assumed to take of one point."""
COPY_BYTES_PER_SECOND = 5e10
"""Of an accelerator, to its host: 12.0 GiB took 0.24 s on an H200 (docs/evidence/gpu.md)."""
MICRO_BATCH_SECONDS = 30
"""What is allowed for the work at hand when a pod is told to stop."""
DAY_SECONDS = 86_400.0


def checkpoint_bytes(parameters: int) -> int:
    """Of a model of so many parameters."""
    return STATE_BYTES * parameters


def needed_grace(write_seconds: float) -> float:
    """Seconds between SIGTERM and SIGKILL in which a pod can save where it stands."""
    return MICRO_BATCH_SECONDS + write_seconds


@dataclass(frozen=True)
class Checkpointing:
    """How a run saves where it stands. All times are in seconds."""

    copy: float
    """Training waits for it."""
    write: float
    """In the background."""
    grace: float
    """From SIGTERM to SIGKILL."""
    preemptions_per_day: float
    """Of all nodes of the run together; 0: not known."""
    longest: float
    """The most from one checkpoint to the next, unless one takes longer to write."""

    @property
    def is_in_time(self) -> bool:
        """Whether a run that is told to stop can save where it stands: then a preemption loses nothing."""
        return needed_grace(self.write) <= self.grace

    @property
    def interval(self) -> float:
        """Seconds from one checkpoint to the next, at which least is lost.

        A preemption loses the write and half an interval on average, so that with the copies the share
        copy / t + rate * (write + t / 2) is lost, and least at t = sqrt(2 * copy / rate) (Young 1974, "A first order
        approximation to the optimum checkpoint interval"). Never below `write`: one is written at a time.
        """
        best = self.longest
        if self.preemptions_per_day and not self.is_in_time:
            best = min(best, math.sqrt(2.0 * self.copy * DAY_SECONDS / self.preemptions_per_day))
        return max(self.write, best)

    @property
    def lost_share(self) -> float:
        """Expected share of the training that copies and preemptions cost."""
        lost = 0.0 if self.is_in_time else self.write + self.interval / 2
        return self.copy / self.interval + self.preemptions_per_day * lost / DAY_SECONDS
