"""A task that one Job at a time works on: the preparation of a corpus, the evaluation of a checkpoint.

Its states are an ordered list of checks; the first that speaks decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from isoloss_contract.ledger import Attempts
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.jobs.attempts import charges
from isoloss_operator.decide.jobs.backoff import not_before
from isoloss_operator.decide.jobs.failures import FailureClass, awaits_result
from isoloss_operator.decide.jobs.waiting import waits_for
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.reasons import Reason, bad_data_reason


@dataclass(frozen=True)
class Wording:
    """How the task is called."""

    name: str
    """Of the Job, as in "The prepare Job"."""
    doing: str
    """As in "Job x is tokenizing the corpus"."""
    active: Reason
    """While its Job is running or about to start."""
    failed: Reason
    """Once its retries are used up."""
    unreadable: Reason
    """While what it made is unusable and made again."""


@dataclass(frozen=True)
class SingleTask:
    """What is known of the task now."""

    words: Wording
    now: datetime
    jobs: tuple[ObservedJob, ...]
    """In order of attempts."""
    attempts: Attempts
    message: str
    """Of the last failure."""
    template: str
    """Digest of the pod template that the next attempt gets."""
    retries: int
    suspended: bool = False
    configuration_error: str = ""
    """What its pod refused about the present spec."""
    create_error: str = ""
    refusal_may_pass: bool = False
    problem: str = ""
    """Why what is stored as its result cannot be used; empty: it can, or nothing is there."""

    @property
    def active(self) -> ObservedJob | None:
        """The newest Job that may still run a pod."""
        return next((job for job in reversed(self.jobs) if job.holds_a_slot), None)

    @property
    def awaited(self) -> ObservedJob | None:
        """A Job that has just succeeded and whose result is not there yet."""
        is_lacking = not self.problem
        found = (job for job in self.jobs if is_lacking and awaits_result(job, self.now))
        return next(found, None)

    @property
    def retries_used_up(self) -> bool:
        """Bad data does not count: the corpus or checkpoint may be fixed where it is stored."""
        counted = charges(self.attempts, self.template)
        bad_data = self.attempts.charged.get(FailureClass.BAD_DATA, 0)
        return counted > 0 and counted - bad_data > self.retries

    @property
    def not_before(self) -> datetime | None:
        """When the next attempt may start; None: at once."""
        return not_before(self.attempts, self.template, self.now)

    @property
    def is_due(self) -> bool:
        """Whether the next attempt may start now, as far as this task is concerned."""
        if self.suspended or self.active or self.awaited:
            return False
        if self.configuration_error or self.retries_used_up:
            return False
        return self.not_before is None or self.not_before <= self.now

    @property
    def seconds_until_due(self) -> float:
        """Seconds until the next attempt may start, at least 1."""
        start = self.not_before
        return 1.0 if start is None else max(1.0, (start - self.now).total_seconds())

    def finding(self) -> Finding:
        """What the task's condition says while there is no result."""
        return next(found for check in STATES if (found := check(self)) is not None)


Check = Callable[[SingleTask], Finding | None]


def _bad_configuration(task: SingleTask) -> Finding | None:
    if not task.configuration_error:
        return None
    return Finding.false(Reason.BAD_CONFIGURATION, task.configuration_error, stalled=True)


def _suspended(task: SingleTask) -> Finding | None:
    if not task.suspended:
        return None
    return Finding.false(
        Reason.SUSPENDED, f"spec.suspend is true: the {task.words.name} Job waits."
    )


def _refused(task: SingleTask) -> Finding | None:
    if not task.create_error:
        return None
    stalled = not task.refusal_may_pass
    return Finding.false(Reason.JOB_REFUSED, task.create_error, stalled=stalled)


def _running(task: SingleTask) -> Finding | None:
    job = task.active
    if job is None:
        return None
    if wait := waits_for(job):
        return Finding.false(wait.reason, f"Job {job.name}: {wait.message}")
    return Finding.false(task.words.active, f"Job {job.name} is {task.words.doing}.")


def _awaited(task: SingleTask) -> Finding | None:
    job = task.awaited
    if job is None:
        return None
    message = f"Job {job.name} has succeeded; its result is not in the store yet."
    return Finding.false(task.words.active, message)


def _failed_for_good(task: SingleTask) -> Finding | None:
    if not task.retries_used_up:
        return None
    message = f"{task.message} (attempt {task.attempts.ended}, the last one allowed)"
    return Finding.false(task.words.failed, message, stalled=True)


def _bad_data(task: SingleTask) -> Finding | None:
    if task.attempts.last_failure != FailureClass.BAD_DATA:
        return None
    code = task.attempts.last_code
    reason = bad_data_reason(code)
    prefix = f"{code}: " if code and reason is Reason.BAD_DATA else ""
    # Retried for ever, but only in case somebody has replaced the data: nothing changes by itself.
    return Finding.false(reason, f"{prefix}{task.message}", stalled=True)


def _retried(task: SingleTask) -> Finding | None:
    failure = task.attempts.last_failure
    if not failure:
        return None
    if failure in (
        FailureClass.INTERRUPTED,
        FailureClass.POD_VANISHED,
        FailureClass.NODE_LOST,
    ):
        message = f"The {task.words.name} Job was interrupted and is retried."
    else:
        ended = task.attempts.ended
        message = f"The {task.words.name} Job is retried after attempt {ended}: {task.message}"
    return Finding.false(Reason.WAITING_TO_RETRY, message)


def _made_again(task: SingleTask) -> Finding | None:
    if not task.problem:
        return None
    message = f"The {task.words.name} Job runs again: {task.problem}"
    return Finding.false(task.words.unreadable, message)


def _starting(task: SingleTask) -> Finding | None:
    return Finding.false(task.words.active, f"The {task.words.name} Job is about to start.")


STATES: tuple[Check, ...] = (
    _bad_configuration,
    _suspended,
    _running,
    _awaited,
    _refused,
    _failed_for_good,
    _bad_data,
    _retried,
    _made_again,
    _starting,
)
