"""What is done about a sweep whose points are known: Jobs deleted, created, let go; the next look."""

from __future__ import annotations

import math
from typing import Final

from isoloss_contract.ledger import DONE
from isoloss_operator.decide.conditions import DATA_READY, parse_conditions, parse_timestamp
from isoloss_operator.decide.jobs import removal
from isoloss_operator.decide.jobs.attempts import next_attempt
from isoloss_operator.decide.jobs.requests import train_request
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import JobDeletion, JobRequest
from isoloss_operator.decide.sweep_view import PointsView

ENDING_SECONDS: Final = 60.0
"""How long after DataReady the Jobs of the preparation may go on. What still runs then does work that another
sweep's Job has done already."""


def creations(view: PointsView) -> tuple[JobRequest, ...]:
    """The next attempts of the points that start now."""
    requests = []
    for point in view.starts:
        attempts = view.recorded.by_key[point.key].attempts
        attempt = next_attempt(attempts, view.sweep.train_jobs.get(point.key, ()))
        requests.append(train_request(view.observed, view.spec, point, attempts, attempt))
    return tuple(requests)


def deletions(view: PointsView) -> tuple[tuple[JobDeletion, ...], tuple[ObservedJob, ...]]:
    """Jobs to delete, and those among them whose points are stopped rather than dropped."""
    jobs = view.sweep.train_jobs
    planned = {job.uid for key, of_point in jobs.items() if key in view.points for job in of_point}
    wanted = planned | {j.uid for j in view.sweep.prepare_jobs if _may_still_end(view, j)}
    obsolete = [job for job in view.observed.jobs if job.uid not in wanted]
    delete = removal.deletions(obsolete, "the spec no longer asks for it")
    unneeded = [job for job in view.active if _is_unneeded(view, job)]
    delete += removal.deletions(unneeded, "its point is done already")
    ended = [job for job in view.active if job not in unneeded and _has_ended(view, job)]
    delete += removal.deletions(ended, "the ledger has recorded the end of its attempt")
    delete += removal.lost_deletions(job for job in recorded_jobs(view) if job.uid in planned)
    stop, why = view.unwanted, "the ledger says to pause or prune its point"
    if view.spec.suspend:
        stop, why = view.active, "the sweep is suspended"
    stopped = tuple(
        job
        for job in stop
        if not job.is_finished and not job.deleting and job not in (*unneeded, *ended)
    )
    return delete + removal.deletions(stopped, why), stopped


def _may_still_end(view: PointsView, job: ObservedJob) -> bool:
    """Whether it is left to end by itself: one of its pods has just written the manifest, most likely."""
    if job.must_be_deleted or view.spec.suspend:
        return False
    said = parse_conditions(view.observed.status).get(DATA_READY)
    if said is None or said.status != "True":
        return True
    since = parse_timestamp(said.last_transition_time) or view.observed.now
    return (view.observed.now - since).total_seconds() < ENDING_SECONDS


def _has_ended(view: PointsView, job: ObservedJob) -> bool:
    """Whether the operator ended it, for lack of progress or by suspension, and has yet to delete it."""
    return job.attempt <= view.recorded.by_key[job.key].attempts.ended


def _is_unneeded(view: PointsView, job: ObservedJob) -> bool:
    """A Job still waiting for its pod although another sweep finished the point."""
    has_begun = job.pod is not None and job.pod.phase != "Pending"
    return view.recorded.by_key[job.key].state in DONE and not has_begun


def recorded_jobs(view: PointsView) -> list[ObservedJob]:
    """Finished Jobs whose outcome the stored ledger knows, not just the one about to be written."""
    ledger = view.sweep.stored_ledger
    if ledger is None:
        return []
    ended = {record.key: record.attempts.ended for record in ledger.points}
    return [
        job
        for job in view.observed.jobs
        if job.kind == "prepare"
        or job.key not in view.points
        or (job.key in ended and job.attempt <= ended[job.key])
    ]


def requeue_after(view: PointsView) -> float:
    """Seconds until the next pass unless an event comes first."""
    if view.unanswered:
        return 15.0
    if has_unrecorded(view):
        return 1.0
    due = view.admission.next_start
    if due is not None and not view.starts:
        return min(60.0, max(1.0, (due - view.observed.now).total_seconds()))
    if view.sweep.running:
        return 30.0
    return math.inf if _is_idle(view) else 60.0


def has_unrecorded(view: PointsView) -> bool:
    """Whether Jobs are to be let go as soon as the ledger about to be written is stored."""
    recorded = {job.uid for job in recorded_jobs(view)}
    return any(_is_kept(job) and job.uid not in recorded for job in view.observed.jobs)


def _is_kept(job: ObservedJob) -> bool:
    """Whether it ended and stays until somebody lets it go."""
    return job.is_finished and not job.expires and not job.deleting


def _is_idle(view: PointsView) -> bool:
    """Whether the final laws are there and every Job that ended has been let go."""
    return (
        view.is_over
        and view.final_laws is not None
        and not any(_is_kept(job) for job in view.observed.jobs)
    )
