"""What a sweep has spent, what it is still to spend, and whether spec.budget allows it.

Work in flight counts: a budget is a limit of what may be spent, not of what has been recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from isoloss.formatting import flops as flops_in_words
from isoloss.progress.words import BUDGET_SPENT
from isoloss_contract.ledger import DONE, Intent, IntentAction, Ledger, PointRecord, PointState
from isoloss_contract.records import PointProgress
from isoloss_operator.api import SweepBudget
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.points.ledgers import Recorded
from isoloss_operator.decide.points.recording import own_progress
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.pace import ASSUMED_FLOPS_PER_SECOND
from isoloss_operator.planning.points import PlannedPoint

BUDGET_RAISED: Final = "BudgetRaised"
"""Of one that goes on to where a search wanted it before that."""
ROUNDING: Final = 1e-6


@dataclass(frozen=True)
class Spending:
    """FLOPs and accelerator seconds of a sweep's own attempts: adopted results cost it nothing."""

    flops: float
    accelerator_seconds: float
    seconds_per_flop: float
    """Measured on the points done, failed attempts included; before the first on what runs; before that
    the assumption of `isoloss plan`."""


def spending(recorded: Recorded, observed: ObservedSweep) -> Spending:
    """What all attempts of the sweep cost so far: those that ended, and those that run."""
    ledger = recorded.ledger
    ended, running = ledger.spent, _in_flight(recorded.by_key, observed)
    flops = ended.flops + sum(flops for flops, _ in running)
    seconds = ended.accelerator_seconds + sum(seconds for _, seconds in running)
    done = [r for r in ledger.points if r.state in DONE and not r.adopted]
    done_flops = sum(record.spent_flops for record in done)
    if done_flops > 0:
        pace = sum(record.spent_accelerator_seconds for record in done) / done_flops
    elif flops > 0:
        pace = seconds / flops
    else:
        pace = 1 / ASSUMED_FLOPS_PER_SECOND
    return Spending(flops, seconds, pace)


def _in_flight(
    records: Mapping[str, PointRecord], observed: ObservedSweep
) -> list[tuple[float, float]]:
    """FLOPs and accelerator seconds of each attempt whose end the ledger does not know."""
    found = []
    for job in observed.jobs:
        record = records.get(job.key)
        if job.kind != "train" or record is None or job.attempt <= record.attempts.ended:
            continue
        progress = own_progress(observed, job.key)
        flops = 0.0
        if progress is not None and progress.claimant.attempt == job.attempt:
            flops = max(0.0, record.flops_per_token * progress.trained_tokens - record.spent_flops)
        found.append((flops, job.accelerator_seconds(observed.now)))
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
    budget: SweepBudget | None,
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


def exceeded(budget: SweepBudget | None, spent: Spending) -> str:
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


def flops_left(budget: SweepBudget | None, spent: Spending) -> float | None:
    """FLOPs of the budget that are not spent; None where it does not limit them."""
    flops, _ = _left(budget, spent)
    return None if math.isinf(flops) else flops


def _left(budget: SweepBudget | None, spent: Spending) -> tuple[float, float]:
    """FLOPs and accelerator seconds."""
    flops = float(budget.flops) if budget and budget.flops else math.inf
    hours = budget.accelerator_hours if budget else None
    seconds = hours * 3600.0 if hours else math.inf
    return flops - spent.flops, seconds - spent.accelerator_seconds


def with_budget_intents(ledger: Ledger, *, is_spent: bool) -> Ledger:
    """The ledger in which a spent budget pauses every unfinished point, and one with room lets them run.

    Points that are paused or pruned for another reason stay so.
    """

    def intended(record: PointRecord) -> PointRecord:
        is_paused = record.intent.reason == BUDGET_SPENT
        if is_spent and record.intent.action is IntentAction.RUN and _may_run(record):
            tokens = record.intent.tokens
            return replace(record, intent=Intent(IntentAction.PAUSE, tokens, BUDGET_SPENT))
        if is_paused and not (is_spent and _may_run(record)):
            return replace(record, intent=_resumed(record.intent.tokens))
        return record

    points = tuple(intended(record) for record in ledger.points)
    return ledger if points == ledger.points else ledger.replace(points=points)


def _resumed(tokens: int) -> Intent:
    """To the tokens that a search wanted before the budget was spent; without any, as the spec asks."""
    return Intent(IntentAction.RUN, tokens, BUDGET_RAISED) if tokens else Intent()


def _may_run(record: PointRecord) -> bool:
    return record.state is PointState.PENDING
