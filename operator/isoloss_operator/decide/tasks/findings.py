"""What holds a set of tasks up, or how far it is: each a check that speaks or does not.

sweep.py has the order in which a sweep's Ready asks them, validation.py that of a prediction's Validated.
"""

from __future__ import annotations

from collections.abc import Sequence

from isoloss.formatting import are, counted
from isoloss_contract.ledger import DONE, PointRecord, PointState
from isoloss_operator.decide.conditions import Finding, shortened
from isoloss_operator.decide.jobs.failures import FailureClass, waits_for
from isoloss_operator.decide.observation import ObservedJob, ObservedTasks
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.suspension import left_behind, suspension
from isoloss_operator.decide.tasks.task_pass import TaskPass

MAX_NAMED = 5
MAX_WORDS = 300


def bad_configuration(tasks: TaskPass) -> Finding | None:
    """A pod refused what the spec says; nothing starts until it changes."""
    error = tasks.ledger.configuration_error
    if error is None:
        return None
    where = f"{error.field}: " if error.field else ""
    message = f"{where}{error.message} (found by {error.where})"
    return Finding.false(Reason.BAD_CONFIGURATION, message, stalled=True)


def too_many_failed_points(tasks: TaskPass) -> Finding | None:
    """More points failed for good than the failure policy allows."""
    if not tasks.too_many_failed:
        return None
    allowed = tasks.policy.max_failed
    message = (
        f"{counted(len(tasks.failed), 'point')} failed for good, more than the {allowed} of "
        f"failurePolicy.maxFailedPoints: {failed_in_words(tasks.failed)}"
    )
    return Finding.false(Reason.TOO_MANY_FAILED_POINTS, message, stalled=True)


def budget_spent(tasks: TaskPass) -> Finding | None:
    """Running attempts are stopped with a checkpoint: a larger budget continues them."""
    if not tasks.budget_spent or not tasks.active:
        return None
    message = f"{tasks.budget_spent}: {counted(len(tasks.active), 'running point')} {are(len(tasks.active))} stopped."
    return Finding.false(Reason.BUDGET_EXHAUSTED, message)


def suspended(tasks: TaskPass) -> Finding | None:
    """spec.suspend is true."""
    finding = suspension(tasks.world.jobs, tasks.world, suspend=tasks.policy.suspend)
    return Finding.false(finding.reason, finding.message) if tasks.policy.suspend else None


def ledger_not_taken(tasks: TaskPass) -> Finding | None:
    """The store did not take the ledger, without which nothing starts."""
    return storage_not_writable(tasks.world)


def job_refused(tasks: TaskPass) -> Finding | None:
    """Retried one at a time; a quota may have room again, a bad pod template stays bad."""
    error, stalled = tasks.world.create_error, not tasks.world.refusal_may_pass
    return Finding.false(Reason.JOB_REFUSED, error, stalled=stalled) if error else None


def all_jobs_wait(tasks: TaskPass) -> Finding | None:
    """Nothing trains: every Job waits for its queue, a node, an image or a Secret."""
    jobs, waits = _unfinished(tasks), _waits(tasks)
    if not jobs or tasks.starts or len(waits) < len(jobs):
        return None
    troubles = _troubles(waits)
    deactivated = [w for w in troubles if w.reason is Reason.WORKLOAD_DEACTIVATED]
    queued = [wait for wait in waits if wait.reason is Reason.QUEUED]
    if troubles and not (queued and len(deactivated) == len(troubles)):
        message = _in_trouble(troubles, len(jobs))
        is_hopeless = len(deactivated) == len(waits)
        return Finding.false(troubles[0].reason, message, stalled=is_hopeless)
    # Those in the queue are admitted by themselves: the others do not hold the sweep up.
    message = (
        f"{counted(len(queued), 'Job')} {are(len(queued))} waiting for Kueue: {queued[0].message}"
    )
    message += f" {_in_trouble(troubles, len(jobs))}" if troubles else ""
    return Finding.false(Reason.QUEUED, message)


def all_points_wait_to_retry(tasks: TaskPass) -> Finding | None:
    """How long a point waits that was preempted twice, or crashed: jobs/attempts.py."""
    waiting = tasks.admission.waiting
    if not waiting or _unfinished(tasks) or tasks.starts:
        return None
    message = f"{done_in_words(tasks)}; {waiting} {are(waiting)} retried after a delay."
    message += "".join(f" {cause}." for cause in node_failures(tasks))
    return Finding.false(Reason.WAITING_TO_RETRY, message)


def node_failures(tasks: TaskPass) -> tuple[str, ...]:
    """What nodes did to the last attempts of unfinished points, each cause once, no more than MAX_NAMED."""
    causes = (
        record.attempts.last_message
        for record in tasks.ledger.points
        if record.state is PointState.PENDING
        and record.attempts.last_failure == FailureClass.NODE_FAILURE
    )
    return tuple(dict.fromkeys(causes))[:MAX_NAMED]


def training(tasks: TaskPass) -> Finding:
    """How far the points are."""
    jobs, waits = _unfinished(tasks), _waits(tasks)
    queued = sum(wait.reason is Reason.QUEUED for wait in waits)
    training = sum(job.is_at_work for job in jobs)
    starting = len(jobs) - len(waits) - training
    if not tasks.policy.is_queued:
        starting += len(tasks.starts)
    else:  # its Jobs are created suspended
        queued += len(tasks.starts)
    message = f"{done_in_words(tasks)}, {training} {are(training)} training"
    message += f", {starting} {are(starting)} starting" if starting > 0 else ""
    message += f", {queued} {are(queued)} queued." if queued else "."
    if troubles := _troubles(waits):
        message += f" {_in_trouble(troubles, len(jobs))}"
    elif not jobs and not tasks.starts and (left := left_behind(tasks.world)):
        message += f" {left}"
    return Finding.false(Reason.TRAINING, message)


def budget_exhausted(tasks: TaskPass) -> Finding | None:
    """Once nothing runs: the remaining points do not fit into the budget, see `account` for what counts."""
    unaffordable = tasks.admission.unaffordable
    if tasks.budget_spent:
        left = sum(record.state is PointState.PENDING for record in tasks.ledger.points)
        message = f"{tasks.budget_spent}: {counted(left, 'point')} {are(left)} not finished."
        return Finding.false(Reason.BUDGET_EXHAUSTED, message) if left else None
    if not unaffordable:
        return None
    count, why = len(unaffordable), tasks.admission.budget_message
    message = f"{counted(count, 'point')} {are(count)} not started: {why}. Raise the budget."
    return Finding.false(Reason.BUDGET_EXHAUSTED, message)


def done_in_words(tasks: TaskPass) -> str:
    """Such as "3 of 8 points are done", without a full stop."""
    records = tasks.ledger.points
    count = sum(record.state in DONE for record in records)
    return f"{count} of {counted(len(records), 'point')} {are(count)} done"


def _unfinished(tasks: TaskPass) -> list[ObservedJob]:
    return [job for job in tasks.active if not job.is_finished]


def _waits(tasks: TaskPass) -> list[Finding]:
    return [wait for job in _unfinished(tasks) if (wait := waits_for(job))]


def _troubles(waits: Sequence[Finding]) -> list[Finding]:
    return [wait for wait in waits if wait.reason is not Reason.QUEUED]


def _in_trouble(troubles: Sequence[Finding], jobs: int) -> str:
    return f"{len(troubles)} of {counted(jobs, 'Job')} cannot start: {troubles[0].message}"


def failed_in_words(failed: Sequence[PointRecord]) -> str:
    """The failed points by name and class, in one bounded sentence."""
    named = [f"{r.name} ({r.attempts.last_failure or r.state})" for r in failed[:MAX_NAMED]]
    more = f" and {len(failed) - MAX_NAMED} more" if len(failed) > MAX_NAMED else ""
    return shortened(", ".join(named) + more, MAX_WORDS)


# ------------------------------------------------------------------------- writes that were refused


def storage_not_writable(observed: ObservedTasks) -> Finding | None:
    """Nothing starts or stops before the store knows of it, so that nothing can be lost."""
    error = observed.store_write_error
    return Finding.false(Reason.STORAGE_NOT_WRITABLE, error) if error else None


def request_refused(observed: ObservedTasks) -> Finding | None:
    """A write without which the others made sense."""
    error = observed.write_error
    return Finding.false(Reason.REQUEST_REFUSED, error) if error else None
