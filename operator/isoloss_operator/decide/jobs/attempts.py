"""What is known of a task's attempts, and how long the next one waits. How each ending changes it: tasks/outcomes.py.

Charges and halvings belong to one pod template, so that a user who fixes the image, the memory limit or
the Secret gives every failed task a fresh start without deleting anything. One table of delays serves all three tasks;
operator/README.md shows it, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from isoloss_contract.ledger import (
    Attempts,
    Ledger,
    PointRecord,
)
from isoloss_contract.timestamps import parse_timestamp
from isoloss_operator.decide.jobs.failures import UNCHARGED, FailureClass
from isoloss_operator.decide.observation import ObservedJob


def charges(attempts: Attempts, template: str) -> int:
    """Failures that count against the retries under a pod template.

    A bad configuration is recorded but does not count: the sweep stops until the spec changes.
    """
    if attempts.template != template:
        return 0
    return sum(
        n for failure, n in attempts.charged.items() if failure != FailureClass.BAD_CONFIGURATION
    )


def charged_as(attempts: Attempts, template: str, failure: FailureClass) -> int:
    """Charged failures of one class under a pod template."""
    return attempts.charged.get(failure, 0) if attempts.template == template else 0


def halvings(attempts: Attempts, template: str) -> int:
    """Halvings of the micro-batch that the next attempt starts with."""
    return attempts.micro_batch_halvings if attempts.template == template else 0


def next_attempt(attempts: Attempts, jobs: Iterable[ObservedJob]) -> int:
    """Number of the next attempt: one after everything that ended, recorded or in the cluster."""
    return max([attempts.ended, *(job.attempt for job in jobs if job.is_finished)]) + 1


def failed_between(before: Ledger | None, after: Ledger) -> list[PointRecord]:
    """The points whose last attempt ended without a result between two ledgers, as `after` has them."""
    records = () if before is None else before.by_key.values()  # dropped ones return as they were
    known = {record.key: record.attempts.ended for record in records}
    return [
        record
        for record in after.points
        if record.attempts.last_failure and record.attempts.ended > known.get(record.key, 0)
    ]


# ------------------------------------------------------------------------- until the next attempt


@dataclass(frozen=True)
class Delay:
    """Seconds before the next attempt: first, first * factor, … up to limit."""

    first: float
    factor: float = 2.0
    limit: float = 300.0
    free: int = 0
    """So many failures in a row delay nothing."""

    def seconds(self, count: int) -> float:
        """After `count` failures of this class."""
        exponent = count - self.free - 1
        # Above 2**16 every delay has met its limit; a larger power would overflow in the end.
        return (
            0.0 if exponent < 0 else min(self.limit, self.first * self.factor ** min(exponent, 16))
        )


_INTERRUPTION: Final = Delay(10.0, free=1)
"""Counts the interruptions in a row that left no time to work: being preempted every hour is no
reason to wait, being preempted every second is."""
_STORE: Final = Delay(15.0, factor=4.0, limit=600.0)
DELAYS: Final[Mapping[FailureClass, Delay]] = {
    FailureClass.INTERRUPTED: _INTERRUPTION,
    FailureClass.POD_VANISHED: _INTERRUPTION,
    FailureClass.NODE_LOST: _INTERRUPTION,
    FailureClass.NODE_FAILURE: Delay(10.0, limit=600.0),
    FailureClass.CLAIMED_ELSEWHERE: Delay(60.0, factor=1.0),
    FailureClass.HOST_OUT_OF_MEMORY: Delay(0.0),
    FailureClass.MEMORY_REFUSED: Delay(0.0),
    FailureClass.STORE_UNAVAILABLE: _STORE,
    FailureClass.STORAGE: _STORE,
    FailureClass.BAD_DATA: Delay(30.0, limit=600.0),
}
_IN_A_ROW: Final = UNCHARGED - {FailureClass.CLAIMED_ELSEWHERE}
"""Counted since an attempt last had time to work; all others by their charges."""
CLOCK_SKEW: Final = timedelta(seconds=30)
"""Two machines' clocks may differ so much."""
OTHERS: Final = Delay(5.0)
"""Delay after every other failure."""


def delay_of(failure: str) -> Delay:
    """The row of the table for a failure class."""
    return next((delay for kind, delay in DELAYS.items() if kind == failure), OTHERS)


def delay_seconds(attempts: Attempts) -> float:
    """How long the next attempt waits after the last one ended."""
    failure = attempts.last_failure
    if not failure:
        return 0.0
    if failure in _IN_A_ROW:
        return delay_of(failure).seconds(attempts.idle_interruptions)
    return delay_of(failure).seconds(max(1, attempts.charged.get(failure, 0)))


def not_before(attempts: Attempts, template: str, now: datetime) -> datetime | None:
    """When the next attempt may start; None: at once.

    A charged failure under another pod template delays nothing: the change is taken for a fix. Nor does
    one that ended in the future: another process wrote it, by a clock that is wrong or differs from ours.
    """
    if attempts.last_failure in attempts.charged and attempts.template != template:
        return None
    ended_at = parse_timestamp(attempts.last_ended_at)
    seconds = delay_seconds(attempts)
    if ended_at is None or seconds <= 0 or ended_at > now + CLOCK_SKEW:
        return None
    return ended_at + timedelta(seconds=seconds)
