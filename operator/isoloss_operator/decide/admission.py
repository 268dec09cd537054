"""Which points to start now: within parallelism and budget, cheapest first, retries after their delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from isoloss_contract.ledger import IntentAction, PointRecord, PointState
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.budget import Spending, affordable, remaining_flops
from isoloss_operator.decide.jobs.backoff import not_before
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.points.recording import own_progress
from isoloss_operator.planning.points import PlannedPoint


@dataclass(frozen=True)
class Admission:
    """What may start now, and what keeps the rest."""

    starts: tuple[PlannedPoint, ...] = ()
    waiting: int = 0
    """Points that are retried after a delay."""
    next_start: datetime | None = None
    """When the first of those is due."""
    unaffordable: tuple[PlannedPoint, ...] = ()
    """Pending points that do not fit into the budget."""
    budget_message: str = ""


def slots_taken(observed: ObservedSweep, spec: ScalingSweepSpec) -> int:
    """Jobs and orphaned pods that count toward parallelism; Jobs being deleted count until they are gone.

    Of the Jobs that wait in their queue, only those beyond `queue.maxWaiting` count.
    """
    waiting = sum(job.waits_in_its_queue for job in observed.jobs)
    holding = sum(job.holds_a_slot for job in observed.jobs) + len(observed.orphaned_pods)
    return holding - min(waiting, _may_wait(spec))


def slots_exceeded(observed: ObservedSweep, spec: ScalingSweepSpec) -> int:
    """Slots taken beyond what the spec allows; 0 or less: none. It may have been lowered meanwhile."""
    admitted = _may_wait(spec)  # Kueue may have admitted all that were let wait
    return slots_taken(observed, spec) - spec.parallelism - admitted


def _may_wait(spec: ScalingSweepSpec) -> int:
    return spec.queue.max_waiting if spec.queue is not None else 0


def admit(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    points: Sequence[PlannedPoint],
    records: Mapping[str, PointRecord],
    unanswered: frozenset[str],
    spent: Spending,
) -> Admission:
    """Pending points to start now, at most as many as there are free slots.

    Points in `unanswered` may have a result that the store did not return: they are left alone.
    """
    busy = {job.key for job in observed.jobs if job.kind == "train" and job.holds_a_slot}
    busy |= unanswered | set(observed.orphaned_pods)
    pending = [
        point
        for point in points
        if records[point.key].state is PointState.PENDING
        and records[point.key].intent.action is IntentAction.RUN
        and point.key not in busy
    ]
    pending.sort(key=lambda point: point.wanted_flops)  # stable: planned order among equals
    committed = sum(
        remaining_flops(point, records[point.key], own_progress(observed, point.key))
        for point in points
        if point.key in busy
    )
    count, message = affordable(spec.budget, spent, committed, pending, records)
    due, later = [], []
    for point in pending[:count]:
        start = not_before(records[point.key].attempts, point.proxy.template_digest, observed.now)
        if start is None or start <= observed.now:
            due.append(point)
        else:
            later.append(start)
    free = max(0, spec.parallelism - slots_taken(observed, spec))
    if observed.create_error:
        free = min(free, 1)  # one at a time, to find out whether the API server still refuses
    return Admission(
        starts=tuple(due[:free]),
        waiting=len(later),
        next_start=min(later, default=None),
        unaffordable=tuple(pending[count:]),
        budget_message=message,
    )
