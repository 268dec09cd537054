"""A task that one Job at a time works on: the preparation of a corpus, the evaluation of a checkpoint.

A pass over it records what ended, admits the next attempt, and says what the task's condition is: an ordered list of
checks, of which the first that speaks decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from isoloss_contract.ledger import Attempts, ConfigurationError
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.jobs import failures
from isoloss_operator.decide.jobs.attempts import (
    after_failure,
    after_result,
    after_stop,
    charges,
    next_attempt,
)
from isoloss_operator.decide.jobs.failures import not_before
from isoloss_operator.decide.jobs.requests import deletions, is_outdated
from isoloss_operator.decide.observation import ObservedJob, ObservedResource
from isoloss_operator.decide.plans import JobDeletion
from isoloss_operator.decide.reasons import TRAINER_REASONS, Reason

MAX_LAST_MESSAGE: Final = 1000
_INTERRUPTIONS: Final = (
    failures.FailureClass.INTERRUPTED,
    failures.FailureClass.POD_VANISHED,
    failures.FailureClass.NODE_LOST,
)


@dataclass(frozen=True)
class Labels:
    """How the task is called."""

    name: str
    """Name of the Job, as in "The prepare Job"."""
    condition: str
    """Which is True while the result is there."""
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
    """What a pass knows at its beginning."""

    labels: Labels
    observed: ObservedResource
    jobs: tuple[ObservedJob, ...]
    """Its own, in order of attempts."""
    stopped: tuple[ObservedJob, ...]
    """Those of them that a suspension stopped and that may be gone."""
    attempts: Attempts
    """As the ledger has them."""
    refused: ConfigurationError | None
    """What the ledger says that its pod refused about the present spec."""
    template: str
    """Digest of the pod template that the next attempt gets."""
    asked: str
    """LABEL_TEMPLATE of that attempt's Job."""
    domains: Sequence[str]
    """Domains of the corpus, under which a pod names fields of the spec."""
    retries: int
    suspend: bool
    is_missing: bool
    """Whether nothing is stored as its result: an attempt that has just succeeded may have written it."""
    problem: str = ""
    """Why what is stored as its result cannot be used; empty: it can, or nothing is there."""
    bad_data_counts: bool = False
    """Whether bad data use up the retries as well: nothing waits for the result."""
    has_room: bool = True
    """Whether a slot is free for it."""


@dataclass(frozen=True)
class SinglePass:
    """What a pass found out about the task, and what it does."""

    task: SingleTask
    attempts: Attempts
    """With every end that is observed, and those of the Jobs that this pass stops."""
    refused: ConfigurationError | None
    delete: tuple[JobDeletion, ...]
    """Jobs that a suspension stops, and those that wait in vain for what is no longer asked for."""

    @property
    def active(self) -> ObservedJob | None:
        """The newest Job that may still run a pod."""
        return next((job for job in reversed(self.task.jobs) if job.holds_a_slot), None)

    @property
    def awaited(self) -> ObservedJob | None:
        """A Job that has just succeeded and whose result is not there yet."""
        is_lacking = not self.task.problem
        found = (
            job
            for job in self.task.jobs
            if is_lacking and failures.awaits_result(job, self.task.observed.now)
        )
        return next(found, None)

    @property
    def retries_used_up(self) -> bool:
        """Bad data mostly do not count: the corpus or checkpoint may be fixed where it is stored."""
        counted, bad_data = charges(self.attempts, self.task.template), 0
        if not self.task.bad_data_counts:
            bad_data = self.attempts.charged.get(failures.FailureClass.BAD_DATA, 0)
        return counted > 0 and counted - bad_data > self.task.retries

    @property
    def not_before(self) -> datetime | None:
        """When the next attempt may start; None: at once."""
        return not_before(self.attempts, self.task.template, self.task.observed.now)

    @property
    def is_due(self) -> bool:
        """Whether this task's next attempt may start now."""
        if self.task.suspend or self.active or self.awaited:
            return False
        if self.refused or self.retries_used_up:
            return False
        return self.not_before is None or self.not_before <= self.task.observed.now

    @property
    def starts(self) -> int | None:
        """Number of the attempt that starts now; None: none does."""
        if not (self.is_due and self.task.has_room):
            return None
        return next_attempt(self.attempts, self.task.jobs)

    @property
    def seconds_until_due(self) -> float:
        """Seconds until the next attempt may start, at least 1."""
        start = self.not_before
        return 1.0 if start is None else max(1.0, (start - self.task.observed.now).total_seconds())

    @property
    def message(self) -> str:
        """Message of the last failure."""
        return self.attempts.last_message or "no reason was given"

    def finding(self) -> Finding:
        """What the task's condition says while there is no result: the first that speaks."""
        task, labels = self.task, self.task.labels
        attempts, failure = self.attempts, self.attempts.last_failure
        if (error := self.refused) is not None:
            where = f"{error.field}: " if error.field else ""
            return Finding(Reason.BAD_CONFIGURATION, f"{where}{error.message}", stalled=True)
        if task.suspend:
            message = f"spec.suspend is true: the {labels.name} Job waits."
            return Finding(Reason.SUSPENDED, message)
        if (job := self.active) is not None:
            if wait := failures.waits_for(job):
                return Finding(wait.reason, f"Job {job.name}: {wait.message}")
            return Finding(labels.active, f"Job {job.name} is {labels.doing}.")
        if (job := self.awaited) is not None:
            message = f"Job {job.name} has succeeded; its result is not in the store yet."
            return Finding(labels.active, message)
        if refusal := task.observed.create_error:
            stalled = not task.observed.refusal_may_pass
            return Finding(Reason.JOB_REFUSED, refusal, stalled=stalled)
        if self.retries_used_up:
            message = f"{self.message} (attempt {attempts.ended}, the last one allowed)"
            return Finding(labels.failed, message, stalled=True)
        if failure == failures.FailureClass.BAD_DATA:
            # Retried forever, but only in case the data have been replaced: nothing changes by itself.
            code = attempts.last_code
            reason = Reason(code) if code in TRAINER_REASONS else Reason.BAD_DATA
            prefix = f"{code}: " if code and reason is Reason.BAD_DATA else ""
            return Finding(reason, f"{prefix}{self.message}", stalled=True)
        if failure:
            return Finding(Reason.WAITING_TO_RETRY, self._retried(failure))
        if task.problem:
            message = f"The {labels.name} Job runs again: {task.problem}"
            return Finding(labels.unreadable, message)
        waits = "waits for a slot, which other Jobs or their pods still hold"
        says = "is about to start" if task.has_room else waits
        return Finding(labels.active, f"The {labels.name} Job {says}.")

    def _retried(self, failure: str) -> str:
        name = self.task.labels.name
        if failure in _INTERRUPTIONS:
            return f"The {name} Job was interrupted and is retried."
        if failure == failures.FailureClass.STORE_UNAVAILABLE:
            return f"The {name} Job is retried: the store did not answer it."
        return f"The {name} Job is retried after attempt {self.attempts.ended}: {self.message}"


def run(task: SingleTask) -> SinglePass:
    """The stages in order: record what ended, stop what is suspended or asked for otherwise, admit the next attempt."""
    attempts, refused = _recorded(task)
    unfinished = [job for job in task.jobs if not job.is_finished and not job.deleting]
    stop = [job for job in unfinished if task.suspend or is_outdated(job, task.asked)]
    for job in (*task.stopped, *stop):
        attempts = after_stop(attempts, job, task.observed.now)
    return SinglePass(task, attempts, refused, deletions(stop))


def _recorded(task: SingleTask) -> tuple[Attempts, ConfigurationError | None]:
    """The attempts with every Job that ended without a result, and what the last of them refused."""
    attempts, refused, observed = task.attempts, task.refused, task.observed
    # Once the condition has said that the result is there, it can have been deleted since.
    condition = observed.previous_conditions.get(task.labels.condition)
    had_result = condition.since if condition and condition.status == "True" else None
    for job in task.jobs:
        if not job.is_finished or job.attempt <= attempts.ended:
            continue
        if task.is_missing and failures.awaits_result(job, observed.now):
            break
        failure = failures.classify(job)
        is_missing = failure.kind is failures.FailureClass.RESULT_MISSING
        if is_missing and had_result and job.ended is not None and job.ended <= had_result:
            attempts = after_result(attempts, job, observed.now)
            continue
        if is_missing and job.template not in ("", task.asked):
            attempts = after_stop(attempts, job, observed.now)
            continue  # another version's, which may have written something else
        field = failures.spec_field(failure.field, domains=task.domains)
        ended = after_failure(attempts, job, failure, template=task.template, now=observed.now)
        attempts = replace(ended, last_message=failure.in_words(field, MAX_LAST_MESSAGE))
        where, asked = task.labels.name, task.asked
        refused = (
            failures.configuration_error(failure, job, observed.generation, where, field, asked)
            or refused
        )
    return attempts, refused
