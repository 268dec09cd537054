"""Which Jobs of a set of tasks are deleted, and which are recorded and may go."""

from __future__ import annotations

from isoloss_contract.ledger import DONE, IntentAction
from isoloss_operator.decide.jobs import removal
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import JobDeletion
from isoloss_operator.decide.tasks.ledgers import Recorded
from isoloss_operator.decide.tasks.task_set import TaskSet


def act(
    tasks: TaskSet, recorded: Recorded
) -> tuple[tuple[JobDeletion, ...], tuple[ObservedJob, ...]]:
    """Jobs to delete, and those among them whose tasks are stopped rather than dropped."""
    planned = {j.uid for key, jobs in tasks.jobs.items() if key in tasks.points for j in jobs}
    wanted = planned | tasks.kept
    obsolete = [job for job in tasks.world.jobs if job.uid not in wanted]
    delete = removal.deletions(obsolete, "the spec no longer asks for it")
    unneeded = [job for job in tasks.active if _is_unneeded(recorded, job)]
    delete += removal.deletions(unneeded, "its point is done already")
    ended = [job for job in tasks.active if job not in unneeded and _has_ended(recorded, job)]
    delete += removal.deletions(ended, "the ledger has recorded the end of its attempt")
    delete += removal.lost_deletions(job for job in recorded_jobs(tasks) if job.uid in planned)
    stop, why = _unwanted(tasks, recorded), "the ledger says to pause or prune its point"
    if tasks.policy.suspend:
        stop, why = tasks.active, "the sweep is suspended"
    stopped = tuple(
        job
        for job in stop
        if not job.is_finished and not job.deleting and job not in (*unneeded, *ended)
    )
    return delete + removal.deletions(stopped, why), stopped


def _unwanted(tasks: TaskSet, recorded: Recorded) -> tuple[ObservedJob, ...]:
    """Jobs of tasks that the ledger says to pause or prune."""
    paused = {r.key for r in recorded.ledger.points if r.intent.action is not IntentAction.RUN}
    return tuple(job for job in tasks.active if job.key in paused)


def _has_ended(recorded: Recorded, job: ObservedJob) -> bool:
    """Whether the operator ended it, for lack of progress or by suspension, and has yet to delete it."""
    return job.attempt <= recorded.by_key[job.key].attempts.ended


def _is_unneeded(recorded: Recorded, job: ObservedJob) -> bool:
    """A Job still waiting for its pod although another sweep finished the point."""
    has_begun = job.pod is not None and job.pod.phase != "Pending"
    return recorded.by_key[job.key].state in DONE and not has_begun


def recorded_jobs(tasks: TaskSet) -> list[ObservedJob]:
    """Jobs whose outcome the stored ledger knows, not just the one about to be written: they may go."""
    ledger = tasks.stored_ledger
    if ledger is None:
        return []
    ended = {record.key: record.attempts.ended for record in ledger.points}
    return [
        job
        for job in tasks.world.jobs
        if job.kind == "prepare"
        or job.key not in tasks.points
        or (job.key in ended and job.attempt <= ended[job.key])
    ]


def has_unrecorded(tasks: TaskSet) -> bool:
    """Whether Jobs are to be let go as soon as the ledger about to be written is stored."""
    recorded = {job.uid for job in recorded_jobs(tasks)}
    return any(is_kept(job) and job.uid not in recorded for job in tasks.world.jobs)


def is_kept(job: ObservedJob) -> bool:
    """Whether it ended and stays until it is released."""
    return job.is_finished and not job.expires and not job.deleting
