"""What is wanted of every task now: that it runs, or waits for a search or for a larger budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from isoloss.progress.words import BUDGET_SPENT
from isoloss_contract.ledger import (
    NOT_CHOSEN,
    Intent,
    IntentAction,
    Ledger,
    PointRecord,
    PointState,
)
from isoloss_operator.decide.tasks.ledgers import Recorded
from isoloss_operator.decide.tasks.task_set import TaskSet

BUDGET_RAISED: Final = "BudgetRaised"
"""Reason of an intent to go on to where a search wanted the point before the budget was spent."""


def intend(tasks: TaskSet, recorded: Recorded, *, is_spent: bool) -> Recorded:
    """The ledger with an intent for every task; `is_spent`: the budget is."""
    ledger = _with_search_intents(recorded.ledger, searches=tasks.policy.searches)
    return Recorded(_with_budget_intents(ledger, is_spent=is_spent), recorded.set_aside)


def _with_search_intents(ledger: Ledger, *, searches: bool) -> Ledger:
    """The ledger in which a new point waits until the search chooses it; without a search all run to their ends."""

    def intended(record: PointRecord) -> PointRecord:
        if searches and record.intent == Intent():
            return replace(record, intent=Intent(IntentAction.PAUSE, reason=NOT_CHOSEN))
        if not searches and _is_of_a_search(record.intent):
            return replace(record, intent=Intent())
        return record

    points = tuple(intended(record) for record in ledger.points)
    return ledger if points == ledger.points else ledger.replace(points=points)


def _is_of_a_search(intent: Intent) -> bool:
    """Nobody else names tokens."""
    return intent.tokens > 0 or intent.reason == NOT_CHOSEN


def _with_budget_intents(ledger: Ledger, *, is_spent: bool) -> Ledger:
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
