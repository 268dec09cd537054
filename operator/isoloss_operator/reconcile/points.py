"""Reading and writing what concerns the points of a sweep."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import Read, Unanswered, is_unknown, value_of
from isoloss_contract.records import PointResult
from isoloss_operator.decide.observation import ObservedJob, PointFiles, PointReads
from isoloss_operator.decide.plans import TaskWrites
from isoloss_operator.decide.status import attempt_events
from isoloss_operator.process.sweep_load import attempts_ended
from isoloss_operator.reconcile.memory import Memory, progress_marks, tolerated, unrecorded
from isoloss_operator.reconcile.resource import Resource, Services

NOT_ASKED = Unanswered("not asked")


def read_points(
    services: Services,
    memory: Memory,
    uri: str,
    reads: PointReads,
    jobs: Sequence[ObservedJob],
    now: datetime,
) -> PointFiles:
    """The results and progress that a decision asks for; `jobs` are those of the points."""
    storage = services.storage
    reported = storage.progress(uri, reads.progress)
    progress = {key: found for key, read in reported.items() if (found := value_of(read))}
    unknown = {job.key for job in jobs if is_unknown(reported.get(job.key, NOT_ASKED))}
    seconds = reads.stall_seconds
    memory.marks = progress_marks(jobs, progress, memory.marks, now, unknown, seconds)
    return PointFiles(
        results={
            **storage.results(uri, reads.results),
            **results_of_failed(
                memory,
                lambda: storage.results(uri, reads.results_of_failed),
                services.settings.resync_seconds,
            ),
        },
        progress=progress,
        unchanged_since={uid: mark.since for uid, mark in memory.marks.items()},
    )


def hold_marks(memory: Memory, now: datetime) -> None:
    """The store did not say how far any point is: no attempt counts as hung for that time."""
    memory.marks = {uid: mark.held(now) for uid, mark in memory.marks.items()}


def store_points(
    services: Services,
    resource: Resource,
    uri: str,
    folder: str,
    before: Read[Ledger],
    plan: TaskWrites,
) -> None:
    """Write the ledger and set aside what is unusable; then count what ended, which events tell of, and forget what is
    recorded.

    `before`: the ledger as it was read.
    """
    memory = resource.memory
    if plan.ledger is not None:
        memory.uncounted = memory.uncounted or before
        known = value_of(before)
        if known is None or known.lost != plan.ledger.lost:
            memory.lost_ledger = plan.ledger.lost
    _write_ledger(services, uri, folder, plan)
    memory.lost_ledger = None
    stored = plan.ledger or value_of(before)
    memory.stopped = unrecorded(memory.stopped, stored)
    if memory.uncounted is not None and stored is not None:
        counted = value_of(memory.uncounted)
        memory.owe(attempt_events(counted, stored))
        for kind, count in attempts_ended(counted, stored).items():
            services.metrics.attempts.labels(resource.namespace, kind).inc(count)
        memory.uncounted = None


def _write_ledger(services: Services, uri: str, folder: str, plan: TaskWrites) -> None:
    """A damaged ledger is set aside before the new one takes its place, everything else afterwards."""
    path = layout.ledger_in(folder)
    for request in plan.quarantined:
        if request.path == path:
            services.storage.quarantine(uri, request)
    if plan.ledger is not None:
        services.ledgers.write(uri, folder, plan.ledger)
    for request in plan.quarantined:
        if request.path != path:
            services.storage.quarantine(uri, request)


def change_jobs(services: Services, resource: Resource, plan: TaskWrites) -> None:
    """Delete Jobs, let others expire, create the next. Raises CreateRefused."""
    owner, memory = resource.owner, resource.memory
    tolerated(memory, lambda: services.jobs.delete(owner, plan.delete))
    tolerated(memory, lambda: services.jobs.expire(owner, plan.expire))
    services.jobs.create(owner, plan.create)
    if plan.create:
        memory.create_error = ""


def results_of_failed(
    memory: Memory,
    read: Callable[[], Mapping[str, Read[PointResult]]],
    interval: float,
    clock: Callable[[], float] = time.monotonic,
) -> Mapping[str, Read[PointResult]]:
    """What `read` finds, once in so many seconds: a thousand failed points are a thousand reads.

    If the store did not answer for all of them, the next pass reads again.
    """
    now = clock()
    if now - memory.failed_read_at < interval:
        return {}
    found = read()
    if not any(isinstance(each, Unanswered) for each in found.values()):
        memory.failed_read_at = now
    return found
