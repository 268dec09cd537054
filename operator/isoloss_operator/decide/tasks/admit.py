"""Which tasks to start now: within parallelism and budget, cheapest first, retries after their delay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from isoloss_contract.ledger import Attempts, IntentAction, PointState
from isoloss_operator.decide.jobs.attempts import next_attempt, not_before
from isoloss_operator.decide.observation import ObservedTasks
from isoloss_operator.decide.tasks.account import Spending, affordable, remaining_flops
from isoloss_operator.decide.tasks.ledgers import Recorded
from isoloss_operator.decide.tasks.task_set import Policy, TaskSet
from isoloss_operator.planning.points import PlannedPoint


@dataclass(frozen=True)
class Start:
    """The next attempt of a task."""

    point: PlannedPoint
    attempts: Attempts
    """Those before it."""
    attempt: int
    """Its number."""


@dataclass(frozen=True)
class Admission:
    """What may start now, and what keeps the rest."""

    starts: tuple[Start, ...] = ()
    waiting: int = 0
    """Tasks that are retried after a delay."""
    next_start: datetime | None = None
    """When the first of those is due."""
    unaffordable: tuple[PlannedPoint, ...] = ()
    """Pending points that do not fit into the budget."""
    budget_message: str = ""


def slots_taken(world: ObservedTasks, policy: Policy) -> int:
    """Jobs and orphaned pods that count toward parallelism; Jobs being deleted count until they are gone.

    Of the Jobs that wait in their queue, only those beyond `policy.may_wait` count.
    """
    waiting = sum(job.waits_in_its_queue for job in world.jobs)
    holding = sum(job.holds_a_slot for job in world.jobs) + len(world.orphaned_pods)
    return holding - min(waiting, policy.may_wait)


def slots_exceeded(world: ObservedTasks, policy: Policy) -> int:
    """Slots taken beyond what the policy allows; 0 or less: none. It may have been lowered meanwhile."""
    # Kueue may have admitted all that were let wait.
    return slots_taken(world, policy) - policy.parallelism - policy.may_wait


def admit(
    tasks: TaskSet, recorded: Recorded, unread: frozenset[str], spent: Spending
) -> Admission:
    """Pending tasks to start now, at most as many as there are free slots.

    Those in `unread` may have a result that the store did not return: they are left alone.
    """
    world, policy, records = tasks.world, tasks.policy, recorded.by_key
    busy = {job.key for job in world.jobs if job.kind == "train" and job.holds_a_slot}
    busy |= unread | set(world.orphaned_pods)
    pending = [
        point
        for point in tasks.points.values()
        if records[point.key].state is PointState.PENDING
        and records[point.key].intent.action is IntentAction.RUN
        and point.key not in busy
    ]
    pending.sort(key=lambda point: point.wanted_flops)  # stable: planned order among equals
    committed = sum(
        remaining_flops(point, records[point.key], tasks.progress(point.key))
        for point in tasks.points.values()
        if point.key in busy
    )
    count, message = affordable(policy.budget, spent, committed, pending, records)
    due, later = _by_delay(pending[:count], recorded, world.now)
    free = max(0, policy.parallelism - slots_taken(world, policy))
    if world.create_error:
        free = min(free, 1)  # one at a time, to find out whether the API server still refuses
    return Admission(
        starts=tuple(_start(tasks, recorded, point) for point in due[:free]),
        waiting=len(later),
        next_start=min(later, default=None),
        unaffordable=tuple(pending[count:]),
        budget_message=message,
    )


def _by_delay(
    pending: Sequence[PlannedPoint], recorded: Recorded, now: datetime
) -> tuple[list[PlannedPoint], list[datetime]]:
    """What is due, and when the others are."""
    due, later = [], []
    for point in pending:
        attempts = recorded.by_key[point.key].attempts
        start = not_before(attempts, point.proxy.template_digest, now)
        if start is None or start <= now:
            due.append(point)
        else:
            later.append(start)
    return due, later


def _start(tasks: TaskSet, recorded: Recorded, point: PlannedPoint) -> Start:
    attempts = recorded.by_key[point.key].attempts
    return Start(point, attempts, next_attempt(attempts, tasks.jobs.get(point.key, ())))
