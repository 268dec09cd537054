"""Which points to start now: within parallelism and budget, cheapest first, retries after their delay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from isoloss_contract.ledger import DONE, PointRecord, PointState
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.jobs.backoff import not_before
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.planning.flops import six_nd
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


def slots_taken(observed: ObservedSweep) -> int:
    """Jobs and orphaned pods that count toward parallelism; Jobs being deleted count until they are gone."""
    return sum(job.holds_a_slot for job in observed.jobs) + len(observed.orphaned_pods)


def admit(
    observed: ObservedSweep,
    spec: ScalingSweepSpec,
    points: Sequence[PlannedPoint],
    records: Mapping[str, PointRecord],
    unanswered: frozenset[str],
) -> Admission:
    """Pending points to start now, at most as many as there are free slots.

    Points in `unanswered` may have a result that the store did not return: they are left alone.
    """
    busy = {job.key for job in observed.jobs if job.kind == "train" and job.holds_a_slot}
    busy |= unanswered | set(observed.orphaned_pods)
    pending = [
        point
        for point in points
        if records[point.key].state is PointState.PENDING and point.key not in busy
    ]
    pending.sort(key=lambda point: point.flops)  # stable: planned order among equals
    running = [point for point in points if point.key in busy]
    affordable, message = _within_budget(spec, pending, running, records)
    due, later = [], []
    for point in pending[:affordable]:
        start = not_before(records[point.key].attempts, point.proxy.template_digest)
        if start is None or start <= observed.now:
            due.append(point)
        else:
            later.append(start)
    free = max(0, spec.parallelism - slots_taken(observed))
    if observed.create_error:
        free = min(free, 1)  # one at a time, to find out whether the API server still refuses
    return Admission(
        starts=tuple(due[:free]),
        waiting=len(later),
        next_start=min(later, default=None),
        unaffordable=tuple(pending[affordable:]),
        budget_message=message,
    )


# ---------------------------------------------------------------------------------------- budget


@dataclass(frozen=True)
class Spending:
    """FLOPs and accelerator seconds of a sweep: its own, adopted results cost it nothing."""

    flops: float
    accelerator_seconds: float
    seconds_per_flop: float
    """Measured on the points done, failed attempts included; 0 before the first."""


def spending(records: Sequence[PointRecord]) -> Spending:
    """What all attempts of this sweep that ended cost, including failed attempts."""
    done = [record for record in records if record.state in DONE and not record.adopted]
    seconds, flops = _sums(done)
    all_seconds, all_flops = _sums(records)
    return Spending(all_flops, all_seconds, seconds / flops if flops > 0 else 0.0)


def _sums(records: Sequence[PointRecord]) -> tuple[float, float]:
    """Accelerator seconds and FLOPs."""
    seconds = sum(record.spent_accelerator_seconds for record in records)
    return seconds, sum(record.spent_flops for record in records)


def remaining_flops(point: PlannedPoint, record: PointRecord) -> float:
    """FLOPs that a point still needs; a continued run has some behind it.

    Work that was interrupted counts as kept: a checkpoint nearly always holds it, and a point that was
    preempted at its end must not look as expensive as a new one.
    """
    if record.state in DONE:
        return 0.0
    behind = max(six_nd(point.proxy.parameters, record.tokens), record.unfinished_flops)
    return max(0.0, point.flops - behind)


def _within_budget(
    spec: ScalingSweepSpec,
    pending: Sequence[PlannedPoint],
    running: Sequence[PlannedPoint],
    records: Mapping[str, PointRecord],
) -> tuple[int, str]:
    """How many of the pending points, cheapest first, fit into the budget; why the next does not."""
    budget = spec.budget
    if budget is None:
        return len(pending), ""
    spent = spending(tuple(records.values()))
    flops_left = float(budget.flops) - spent.flops if budget.flops else math.inf
    seconds_left = math.inf
    if budget.accelerator_hours:
        seconds_left = budget.accelerator_hours * 3600.0 - spent.accelerator_seconds
    committed = sum(remaining_flops(point, records[point.key]) for point in running)
    for index, point in enumerate(pending):
        committed += remaining_flops(point, records[point.key])
        is_over_flops = committed > flops_left
        # Before the first result nobody knows how long a point takes: only a spent budget stops it.
        is_over_time = committed * spent.seconds_per_flop > seconds_left or seconds_left <= 0
        if is_over_flops or is_over_time:
            hours = f"acceleratorHours {budget.accelerator_hours}"
            cap = f"flops {budget.flops}" if is_over_flops else hours
            return index, f"budget.{cap} leaves no room for {point.name}"
    return len(pending), ""
