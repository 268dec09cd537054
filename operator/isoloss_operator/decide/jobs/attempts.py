"""What is known of a task's attempts, how each ending changes it, and how long the next one waits.

Charges and halvings belong to one pod template, so that a user who fixes the image, the memory limit or
the Secret gives every failed task a fresh start without deleting anything. One table of delays serves all three tasks;
operator/README.md shows it, and a test compares the two.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from isoloss_contract import ledger
from isoloss_contract.reading import parse_timestamp
from isoloss_operator.decide.conditions import shortened, timestamp
from isoloss_operator.decide.jobs.failures import (
    MAX_NODE_FAILURES,
    MAX_VANISHED,
    UNCHARGED,
    Failure,
    FailureClass,
)
from isoloss_operator.decide.observation import ObservedJob


def charges(attempts: ledger.Attempts, template: str) -> int:
    """Failures that count against the retries under a pod template.

    A bad configuration is recorded but does not count: the sweep stops until the spec changes.
    """
    if attempts.template != template:
        return 0
    return sum(
        n for failure, n in attempts.charged.items() if failure != FailureClass.BAD_CONFIGURATION
    )


def charged_as(attempts: ledger.Attempts, template: str, failure: FailureClass) -> int:
    """Charged failures of one class under a pod template."""
    return attempts.charged.get(failure, 0) if attempts.template == template else 0


def halvings(attempts: ledger.Attempts, template: str) -> int:
    """Halvings of the micro-batch that the next attempt starts with."""
    return attempts.micro_batch_halvings if attempts.template == template else 0


def next_attempt(attempts: ledger.Attempts, jobs: Iterable[ObservedJob]) -> int:
    """Number of the next attempt: one after everything that ended, recorded or in the cluster."""
    return max([attempts.ended, *(job.attempt for job in jobs if job.is_finished)]) + 1


# -------------------------------------------------------------------- what an ending does to attempts


BUSY_SECONDS: Final = 600.0
"""An attempt that ran this long before it was interrupted did some work: no need to slow the next."""
MAX_HALVINGS: Final = 20


def after_failure(
    attempts: ledger.Attempts,
    job: ObservedJob,
    failure: Failure,
    *,
    template: str,
    now: datetime,
    halvable: int = 0,
) -> ledger.Attempts:
    """The attempts once `job` ended without a result; unchanged if that is recorded already.

    `halvable` is how often the micro-batch can be halved; beyond it, refused memory is final.
    """
    if job.attempt <= attempts.ended:
        return attempts
    failure = _exhausted(attempts, failure, template, halvable)
    if not failure.is_charged:
        attempts = _interrupted(attempts, job, failure, now)
    elif failure.halves_micro_batch:
        fresh = under_template(attempts, template)
        attempts = replace(fresh, micro_batch_halvings=fresh.micro_batch_halvings + 1)
    else:
        attempts = charged(attempts, failure, template, job_uid=job.uid, attempt=job.attempt)
    return replace(
        _ended(attempts, job, now),
        last_failure=str(failure.kind),
        last_code=failure.code,
        # Of an uncharged failure nothing else is kept, and people must see which node it was.
        last_message=failure.message if failure.kind is FailureClass.NODE_FAILURE else "",
    )


def after_stop(attempts: ledger.Attempts, job: ObservedJob, now: datetime) -> ledger.Attempts:
    """The attempts once the operator itself stops an unfinished Job: an interruption without delay."""
    if job.attempt <= attempts.ended:
        return attempts
    return replace(
        _ended(attempts, job, now),
        interruptions=attempts.interruptions + 1,
        idle_interruptions=0,
        last_failure=str(FailureClass.INTERRUPTED),
    )


def after_result(attempts: ledger.Attempts, job: ObservedJob, now: datetime) -> ledger.Attempts:
    """The attempts once a Job of a task that has its result ended."""
    if job.attempt <= attempts.ended:
        return attempts
    ended = _ended(attempts, job, now)
    return replace(ended, last_failure="", last_code="", idle_interruptions=0)


def charged(
    attempts: ledger.Attempts, failure: Failure, template: str, *, job_uid: str, attempt: int
) -> ledger.Attempts:
    """The attempts with one more charged failure under `template`."""
    fresh = under_template(attempts, template)
    kind = str(failure.kind)
    message = shortened(failure.message, ledger.MAX_FAILURE_MESSAGE)
    record = ledger.FailureRecord(attempt=attempt, job_uid=job_uid, failure=kind, message=message)
    return replace(
        fresh,
        charged={**fresh.charged, kind: fresh.charged.get(kind, 0) + 1},
        failures=(*fresh.failures, record)[-ledger.MAX_FAILURES_KEPT :],
        idle_interruptions=0,
    )


def under_template(attempts: ledger.Attempts, template: str) -> ledger.Attempts:
    """The same attempts with charges and halvings of another template dropped."""
    if attempts.template == template:
        return attempts
    return replace(attempts, template=template, charged={}, micro_batch_halvings=0)


def _ended(attempts: ledger.Attempts, job: ObservedJob, now: datetime) -> ledger.Attempts:
    """With the Job's own end, if the API server knows one: a pass that is repeated, as the store did not take what it
    wrote, then writes the same again."""
    ended = now
    if job.is_finished and not job.must_be_deleted and job.ended is not None:
        ended = min(now, max(job.created, job.ended))
    return replace(attempts, ended=job.attempt, last_ended_at=timestamp(ended))


def _exhausted(
    attempts: ledger.Attempts, failure: Failure, template: str, halvable: int
) -> Failure:
    """The failure, made final or charged if what was tolerated has happened too often."""
    used_up = min(halvable, MAX_HALVINGS)
    if failure.halves_micro_batch and halvings(attempts, template) >= used_up:
        message = f"the micro-batch cannot be halved again: {failure.message}"
        return Failure(FailureClass.OUT_OF_MEMORY, message)
    if failure.kind is FailureClass.POD_VANISHED and attempts.vanished >= MAX_VANISHED:
        message = f"{attempts.vanished + 1} pods vanished: {failure.message}"
        return Failure(FailureClass.CRASHED, message)
    if (
        failure.kind is FailureClass.NODE_FAILURE
        and attempts.idle_interruptions >= MAX_NODE_FAILURES
    ):
        message = f"{attempts.idle_interruptions + 1} attempts in a row: {failure.message}"
        return Failure(FailureClass.CRASHED, message)
    is_away = failure.kind is FailureClass.STORE_UNAVAILABLE
    if is_away and attempts.idle_interruptions >= MAX_VANISHED:
        message = f"{attempts.idle_interruptions + 1} attempts in a row: {failure.message}"
        return Failure(FailureClass.STORAGE, message, failure.code)
    return failure


def _interrupted(
    attempts: ledger.Attempts, job: ObservedJob, failure: Failure, now: datetime
) -> ledger.Attempts:
    if failure.kind is FailureClass.CLAIMED_ELSEWHERE:
        return attempts
    was_busy = job.started is not None and (now - job.started).total_seconds() >= BUSY_SECONDS
    return replace(
        attempts,
        interruptions=attempts.interruptions + 1,
        idle_interruptions=1 if was_busy else attempts.idle_interruptions + 1,
        vanished=attempts.vanished + (failure.kind is FailureClass.POD_VANISHED),
    )


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


def delay_seconds(attempts: ledger.Attempts) -> float:
    """How long the next attempt waits after the last one ended."""
    failure = attempts.last_failure
    if not failure:
        return 0.0
    if failure in _IN_A_ROW:
        return delay_of(failure).seconds(attempts.idle_interruptions)
    return delay_of(failure).seconds(max(1, attempts.charged.get(failure, 0)))


def not_before(attempts: ledger.Attempts, template: str, now: datetime) -> datetime | None:
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
