"""What a set of tasks has spent, what it is still to spend, and whether its budget allows it.

Work in flight counts: a budget is a limit of what may be spent, not of what has been recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from isoloss.formatting import flops as flops_in_words
from isoloss_contract.ledger import DONE, PointRecord
from isoloss_contract.records import PointProgress
from isoloss_operator.decide.tasks.ledgers import Recorded
from isoloss_operator.decide.tasks.task_set import Budget, TaskSet
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.pace import PEAK_FLOPS, assumed_utilisation
from isoloss_operator.planning.points import PlannedPoint

ROUNDING: Final = 1e-6


@dataclass(frozen=True)
class Spending:
    """FLOPs and accelerator seconds of the owner's own attempts: adopted results cost it nothing."""

    flops: float
    accelerator_seconds: float
    seconds_per_flop: float
    """Measured on the points done, failed attempts included; before the first on what runs; before that
    the assumption of `isoloss plan`."""


def account(tasks: TaskSet, recorded: Recorded) -> Spending:
    """What all attempts cost so far: those that ended, and those that run."""
    ledger = recorded.ledger
    ended, running = ledger.spent, _in_flight(recorded.by_key, tasks)
    flops = ended.flops + sum(flops for flops, _ in running)
    seconds = ended.accelerator_seconds + sum(seconds for _, seconds in running)
    done = [r for r in ledger.points if r.state in DONE and not r.adopted]
    done_flops = sum(record.spent_flops for record in done)
    if done_flops > 0:
        pace = sum(record.spent_accelerator_seconds for record in done) / done_flops
    elif flops > 0:
        pace = seconds / flops
    else:
        pace = assumed_seconds_per_flop(tasks.points.values())
    return Spending(flops, seconds, pace)


def assumed_seconds_per_flop(points: Iterable[PlannedPoint]) -> float:
    """Accelerator seconds per FLOP of these points as `isoloss plan` assumes them for models of their kind."""
    flops = [
        (p.wanted_flops, assumed_utilisation(p.proxy.parameters) * PEAK_FLOPS) for p in points
    ]
    total = sum(wanted for wanted, _ in flops)
    return sum(wanted / pace for wanted, pace in flops) / total if total else 0.0


def _in_flight(records: Mapping[str, PointRecord], tasks: TaskSet) -> list[tuple[float, float]]:
    """FLOPs and accelerator seconds of each attempt whose end the ledger does not know."""
    found = []
    for job in tasks.world.jobs:
        record = records.get(job.key)
        if job.kind != "train" or record is None or job.attempt <= record.attempts.ended:
            continue
        progress = tasks.progress(job.key)
        flops = 0.0
        if progress is not None and progress.claimant.attempt == job.attempt:
            flops = max(0.0, record.flops_per_token * progress.trained_tokens - record.spent_flops)
        found.append((flops, job.accelerator_seconds(tasks.world.now)))
    return found


def remaining_flops(
    point: PlannedPoint, record: PointRecord, progress: PointProgress | None = None
) -> float:
    """FLOPs that a point still needs; a continued run has some behind it.

    Work that was interrupted counts as kept: a checkpoint nearly always holds it, and a point that was
    preempted at its end must not look as expensive as a new one.
    """
    if record.state in DONE:
        return 0.0
    reported = progress.trained_tokens if progress is not None else 0
    behind = max(
        recorded_flops(point, record),
        six_nd(point.proxy.parameters, reported),
        record.unfinished_flops,
    )
    return max(0.0, point.wanted_flops - behind)


def recorded_flops(point: PlannedPoint, record: PointRecord) -> float:
    """FLOPs behind the point's last result, whoever spent them; 0 without one."""
    return max(six_nd(point.proxy.parameters, record.tokens), record.flops)


def affordable(
    budget: Budget | None,
    spent: Spending,
    committed_flops: float,
    pending: Sequence[PlannedPoint],
    records: Mapping[str, PointRecord],
) -> tuple[int, str]:
    """How many of the pending points, in their order, fit into the budget; why the next does not.

    `committed_flops` are those that running points still need.
    """
    flops_left, seconds_left = _left(budget, spent)
    committed = committed_flops
    for index, point in enumerate(pending):
        committed += remaining_flops(point, records[point.key])
        is_over_flops = committed > flops_left
        is_over_time = committed * spent.seconds_per_flop > seconds_left or seconds_left <= 0
        if budget is not None and (is_over_flops or is_over_time):
            hours = f"acceleratorHours {budget.accelerator_hours}"
            cap = f"flops {budget.flops}" if is_over_flops else hours
            return index, f"budget.{cap} leaves no room for {point.name}"
    return len(pending), ""


def exceeded(budget: Budget | None, spent: Spending) -> str:
    """Which part of the budget is spent, with what was spent; empty: there is some left."""
    if budget is None:
        return ""
    flops_left, seconds_left = _left(budget, spent)
    # A run at its very end has spent just what was planned: rounding must not stop it there.
    if budget.flops and flops_left < -ROUNDING * float(budget.flops):
        return (
            f"budget.flops {budget.flops} is spent: its points used {flops_in_words(spent.flops)}"
        )
    if seconds_left < 0:
        hours = spent.accelerator_seconds / 3600
        return f"budget.acceleratorHours {budget.accelerator_hours} is spent: its points used {hours:.2f}"
    return ""


def flops_left(budget: Budget | None, spent: Spending) -> float | None:
    """FLOPs of the budget that are not spent; None if it does not limit them."""
    flops, _ = _left(budget, spent)
    return None if math.isinf(flops) else flops


def _left(budget: Budget | None, spent: Spending) -> tuple[float, float]:
    """FLOPs and accelerator seconds."""
    flops = float(budget.flops) if budget and budget.flops else math.inf
    hours = budget.accelerator_hours if budget else None
    seconds = hours * 3600.0 if hours else math.inf
    return flops - spent.flops, seconds - spent.accelerator_seconds
