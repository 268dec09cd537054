"""What holds the points of a sweep up, or how far they are: each a check that speaks or does not.

sweep.py has the order in which a sweep's Ready asks them, validation.py that of a prediction's Validated.
"""

from __future__ import annotations

from collections.abc import Sequence

from isoloss_contract.ledger import DONE, PointState
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.jobs.waiting import Wait, waits_for
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.refused_writes import storage_not_writable
from isoloss_operator.decide.sweep_conditions import suspension
from isoloss_operator.decide.sweep_status import failed_in_words
from isoloss_operator.decide.sweep_view import PointsView


def bad_configuration(view: PointsView) -> Finding | None:
    """A pod refused what the spec says; nothing starts until it changes."""
    error = view.ledger.configuration_error
    if error is None:
        return None
    where = f"{error.field}: " if error.field else ""
    message = f"{where}{error.message} (found by {error.where})"
    return Finding.false(Reason.BAD_CONFIGURATION, message, stalled=True)


def too_many_failed_points(view: PointsView) -> Finding | None:
    """More points failed for good than the failure policy allows."""
    if not view.too_many_failed:
        return None
    allowed = view.spec.failure_policy.max_failed_points
    message = (
        f"{len(view.failed)} points failed for good, more than the {allowed} of "
        f"failurePolicy.maxFailedPoints: {failed_in_words(view.failed)}"
    )
    return Finding.false(Reason.TOO_MANY_FAILED_POINTS, message, stalled=True)


def budget_spent(view: PointsView) -> Finding | None:
    """Running attempts are stopped with a checkpoint: a larger budget continues them."""
    if not view.budget_spent or not view.active:
        return None
    message = f"{view.budget_spent}: {len(view.active)} running points are stopped."
    return Finding.false(Reason.BUDGET_EXHAUSTED, message)


def suspended(view: PointsView) -> Finding | None:
    """spec.suspend is true."""
    finding = suspension(view.observed)
    return Finding.false(finding.reason, finding.message) if view.spec.suspend else None


def ledger_not_taken(view: PointsView) -> Finding | None:
    """The store did not take the ledger, without which nothing starts."""
    return storage_not_writable(view.observed)


def job_refused(view: PointsView) -> Finding | None:
    """Retried one at a time; a quota may have room again, a bad pod template stays bad."""
    error, stalled = view.observed.create_error, not view.observed.refusal_may_pass
    return Finding.false(Reason.JOB_REFUSED, error, stalled=stalled) if error else None


def all_jobs_wait(view: PointsView) -> Finding | None:
    """Nothing trains: every Job waits for its queue, a node, an image or a Secret."""
    jobs, waits = _unfinished(view), _waits(view)
    if not jobs or view.starts or len(waits) < len(jobs):
        return None
    troubles = _troubles(waits)
    deactivated = [w for w in troubles if w.reason is Reason.WORKLOAD_DEACTIVATED]
    queued = [wait for wait in waits if wait.reason is Reason.QUEUED]
    if troubles and not (queued and len(deactivated) == len(troubles)):
        message = _in_trouble(troubles, len(jobs))
        is_hopeless = len(deactivated) == len(waits)
        return Finding.false(troubles[0].reason, message, stalled=is_hopeless)
    # Those in the queue are admitted by themselves: the others do not hold the sweep up.
    message = f"{len(queued)} Jobs are waiting for Kueue to admit them: {queued[0].message}"
    message += f" {_in_trouble(troubles, len(jobs))}" if troubles else ""
    return Finding.false(Reason.QUEUED, message)


def all_points_wait_to_retry(view: PointsView) -> Finding | None:
    """How long a point waits that was preempted twice, or crashed: jobs/backoff.py."""
    waiting = view.admission.waiting
    if not waiting or _unfinished(view) or view.starts:
        return None
    message = f"{done_in_words(view)}; {waiting} are retried after a delay."
    return Finding.false(Reason.WAITING_TO_RETRY, message)


def training(view: PointsView) -> Finding:
    """How far the points are."""
    jobs, waits = _unfinished(view), _waits(view)
    queued = sum(wait.reason is Reason.QUEUED for wait in waits)
    training = sum(job.is_at_work for job in jobs)
    starting = len(jobs) - len(waits) - training
    if view.spec.queue is None:
        starting += len(view.starts)
    else:  # its Jobs are created suspended
        queued += len(view.starts)
    message = f"{done_in_words(view)}, {training} are training"
    message += f", {starting} are starting" if starting > 0 else ""
    message += f", {queued} are queued." if queued else "."
    if troubles := _troubles(waits):
        message += f" {_in_trouble(troubles, len(jobs))}"
    return Finding.false(Reason.TRAINING, message)


def budget_exhausted(view: PointsView) -> Finding | None:
    """The remaining points do not fit into spec.budget: see budget.py for what counts."""
    unaffordable = view.admission.unaffordable
    if not view.is_over:
        return None
    if view.budget_spent:
        left = sum(record.state is PointState.PENDING for record in view.ledger.points)
        message = f"{view.budget_spent}: {left} points are not finished."
        return Finding.false(Reason.BUDGET_EXHAUSTED, message) if left else None
    if not unaffordable:
        return None
    message = f"{len(unaffordable)} points are not started: {view.admission.budget_message}"
    return Finding.false(Reason.BUDGET_EXHAUSTED, message)


def done_in_words(view: PointsView) -> str:
    """Such as "3 of 8 points are done", without a full stop."""
    done = sum(record.state in DONE for record in view.ledger.points)
    return f"{done} of {len(view.ledger.points)} points are done"


def _unfinished(view: PointsView) -> list[ObservedJob]:
    return [job for job in view.active if not job.is_finished]


def _waits(view: PointsView) -> list[Wait]:
    return [wait for job in _unfinished(view) if (wait := waits_for(job))]


def _troubles(waits: Sequence[Wait]) -> list[Wait]:
    return [wait for wait in waits if wait.reason is not Reason.QUEUED]


def _in_trouble(troubles: Sequence[Wait], jobs: int) -> str:
    return f"{len(troubles)} of {jobs} Jobs cannot start: {troubles[0].message}"
