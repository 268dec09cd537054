"""A task that one Job at a time works on: the preparation of a corpus, the evaluation of a checkpoint.

A pass over it records what ended, admits the next attempt, and says what the task's condition is: an ordered list of
checks, of which the first that speaks decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from isoloss_contract.ledger import Attempts, ConfigurationError
from isoloss_operator.decide.attempts import (
    after_failure,
    after_result,
    after_stop,
    charges,
    next_attempt,
)
from isoloss_operator.decide.failures import (
    FailureClass,
    awaits_result,
    classify,
    configuration_error,
    not_before,
    spec_field,
    waits_for,
)
from isoloss_operator.decide.observation import ObservedJob, ObservedResource
from isoloss_operator.decide.reasons import TRAINER_REASONS, Finding, Reason

MAX_LAST_MESSAGE: Final = 1000
_INTERRUPTIONS: Final = (
    FailureClass.INTERRUPTED,
    FailureClass.POD_VANISHED,
    FailureClass.NODE_LOST,
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
    outdated: Sequence[ObservedJob]
    """Those of `jobs` that wait in vain for what is no longer asked for."""
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

    attempts: Attempts
    """With every end that is observed, and those of the Jobs that this pass stops."""
    refused: ConfigurationError | None
    finding: Finding
    """What the task's condition says while there is no result."""
    starts: int | None
    """Number of the attempt that starts now; None: none does."""
    stop: tuple[ObservedJob, ...]
    """Jobs that a suspension stops, and those that wait in vain for what is no longer asked for."""
    is_active: bool
    """Whether a Job may still run a pod."""
    seconds_until_due: float | None
    """Until the next attempt may start, at least 1; None: nothing delays it."""


def run(task: SingleTask) -> SinglePass:
    """The stages in order: record what ended, stop what is suspended or asked for otherwise, admit the next attempt."""
    attempts, refused = _recorded(task)
    unfinished = [job for job in task.jobs if not job.is_finished and not job.deleting]
    stop = tuple(job for job in unfinished if task.suspend or job in task.outdated)
    now = task.observed.now
    for job in (*task.stopped, *stop):
        attempts = after_stop(attempts, job, now)
    counted = charges(attempts, task.template)
    starts, due = next_attempt(attempts, task.jobs), not_before(attempts, task.template, now)
    active = next((job for job in reversed(task.jobs) if job.holds_a_slot), None)
    wait = None if active is None else waits_for(active)
    # A Job that has just succeeded and whose result is not there yet.
    ended = () if task.problem else task.jobs
    awaited = next((job for job in ended if awaits_result(job, now)), None)
    # Bad data mostly do not count: the corpus or checkpoint may be fixed where it is stored.
    bad_data = 0 if task.bad_data_counts else attempts.charged.get(FailureClass.BAD_DATA, 0)
    is_used_up = counted > 0 and counted - bad_data > task.retries
    if active is not None:
        at_work = _at_work(task.labels, active, wait)
    elif awaited is not None:
        message = f"Job {awaited.name} has succeeded; its result is not in the store yet."
        at_work = Finding(task.labels.active, message)
    else:
        at_work = None
    is_held = task.suspend or at_work or refused or is_used_up
    is_due = not is_held and task.has_room and (due is None or due <= now)
    return SinglePass(
        attempts=attempts,
        refused=refused,
        finding=_finding(task, attempts, refused, at_work, is_used_up=is_used_up),
        starts=starts if is_due else None,
        stop=stop,
        is_active=active is not None,
        seconds_until_due=None if due is None else max(1.0, (due - now).total_seconds()),
    )


def _at_work(labels: Labels, job: ObservedJob, wait: Finding | None) -> Finding:
    """Of a Job that may still run a pod; `wait` is what it waits for."""
    if wait is not None:
        return Finding(wait.reason, f"Job {job.name}: {wait.message}")
    return Finding(labels.active, f"Job {job.name} is {labels.doing}.")


def _finding(
    task: SingleTask,
    attempts: Attempts,
    refused: ConfigurationError | None,
    at_work: Finding | None,
    *,
    is_used_up: bool,
) -> Finding:
    """What the task's condition says while there is no result: the first that speaks. `at_work` is what its Job says."""
    labels, failure = task.labels, attempts.last_failure
    message = attempts.last_message or "no reason was given"
    if refused is not None:
        where = f"{refused.field}: " if refused.field else ""
        return Finding(Reason.BAD_CONFIGURATION, f"{where}{refused.message}", stalled=True)
    if task.suspend:
        return Finding(Reason.SUSPENDED, f"spec.suspend is true: the {labels.name} Job waits.")
    if at_work is not None:
        return at_work
    if refusal := task.observed.create_error:
        stalled = not task.observed.refusal_may_pass
        return Finding(Reason.JOB_REFUSED, refusal, stalled=stalled)
    if is_used_up:
        message = f"{message} (attempt {attempts.ended}, the last one allowed)"
        return Finding(labels.failed, message, stalled=True)
    if failure == FailureClass.BAD_DATA:
        # Retried forever, but only in case the data have been replaced: nothing changes by itself.
        code = attempts.last_code
        reason = Reason(code) if code in TRAINER_REASONS else Reason.BAD_DATA
        prefix = f"{code}: " if code and reason is Reason.BAD_DATA else ""
        return Finding(reason, f"{prefix}{message}", stalled=True)
    if failure in _INTERRUPTIONS:
        message = f"The {labels.name} Job was interrupted and is retried."
    elif failure == FailureClass.STORE_UNAVAILABLE:
        message = f"The {labels.name} Job is retried: the store did not answer it."
    elif failure:
        message = f"The {labels.name} Job is retried after attempt {attempts.ended}: {message}"
    if failure:
        return Finding(Reason.WAITING_TO_RETRY, message)
    if task.problem:
        message = f"The {labels.name} Job runs again: {task.problem}"
        return Finding(labels.unreadable, message)
    waits = "waits for a slot, which other Jobs or their pods still hold"
    says = "is about to start" if task.has_room else waits
    return Finding(labels.active, f"The {labels.name} Job {says}.")


def _recorded(task: SingleTask) -> tuple[Attempts, ConfigurationError | None]:
    """The attempts with every Job that ended without a result, and what the last of them refused."""
    attempts, refused, observed = task.attempts, task.refused, task.observed
    # Once the condition has said that the result is there, it can have been deleted since.
    condition = observed.previous_conditions.get(task.labels.condition)
    had_result = condition.since if condition and condition.status == "True" else None
    for job in task.jobs:
        if not job.is_finished or job.attempt <= attempts.ended:
            continue
        if task.is_missing and awaits_result(job, observed.now):
            break
        failure = classify(job)
        is_missing = failure.kind is FailureClass.RESULT_MISSING
        if is_missing and had_result and job.ended is not None and job.ended <= had_result:
            attempts = after_result(attempts, job, observed.now)
            continue
        if is_missing and job.template not in ("", task.asked):
            attempts = after_stop(attempts, job, observed.now)
            continue  # another version's, which may have written something else
        field = spec_field(failure.field, domains=task.domains)
        ended = after_failure(attempts, job, failure, template=task.template, now=observed.now)
        attempts = replace(ended, last_message=failure.in_words(field, MAX_LAST_MESSAGE))
        where, asked = task.labels.name, task.asked
        refused = (
            configuration_error(failure, job, observed.generation, where, field, asked) or refused
        )
    return attempts, refused
