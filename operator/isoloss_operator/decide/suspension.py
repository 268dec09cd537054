"""Suspension acts before anything is read: Jobs are stopped first, and recorded once the ledger can be.

A store that is away, a revoked right or a sweep that is gone must not keep pods at work that a user wants to
stop. Their attempts are not charged. What they cost is known of the Jobs as they were when they were stopped: the
shell remembers these until a pass has written them to the ledger. An operator that is restarted after they are gone
has forgotten them, and the accelerator time of such an attempt counts only once its point's result reports it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from isoloss_contract.ledger import Ledger
from isoloss_operator.decide.attempts import pod_seconds
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import JobDeletion
from isoloss_operator.decide.requests import deletions

Stop = tuple[tuple[JobDeletion, ...], tuple[ObservedJob, ...]]
"""Jobs to delete, and all Jobs that were stopped and may not be recorded yet."""


def stop(jobs: Sequence[ObservedJob], stopped: Sequence[ObservedJob], now: datetime) -> Stop:
    """Stop `jobs` of which no ledger hears now; `stopped` are those of which that is known already.

    One that has ended without Kubernetes knowing is among them: deleted, it could not tell the ledger of its end any
    more.
    """
    known = {job.uid for job in stopped}
    deleted = (job for job in jobs if job.must_be_deleted or not job.is_finished)
    new = (job for job in deleted if job.uid not in known)
    # With what they have cost by now, however much later that is recorded.
    as_of_now = (
        replace(job, worked_seconds=pod_seconds(job, now), working_since=None) for job in new
    )
    return deletions(jobs), (*stopped, *as_of_now)


def unrecorded(stopped: Iterable[ObservedJob], ledger: Ledger | None) -> tuple[ObservedJob, ...]:
    """Those whose attempt has not ended in the ledger."""
    if ledger is None:
        return tuple(stopped)
    return tuple(job for job in stopped if job.attempt > _ended(ledger, job))


def _ended(ledger: Ledger, job: ObservedJob) -> int:
    """Number of the last attempt at the task of a Job that ended."""
    match job.kind:
        case "prepare":
            return ledger.preparation.ended
        case "evaluate":
            return ledger.evaluation.ended if ledger.evaluate_key == job.key else 0
        case "train":
            record = ledger.by_key.get(job.key)
            return record.attempts.ended if record else 0
