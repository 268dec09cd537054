"""What a point of a sweep does now, by its record in the ledger."""

from __future__ import annotations

from enum import Enum

from isoloss_contract.ledger import (
    FAILED_FOR_GOOD,
    NOT_CHOSEN,
    IntentAction,
    PointRecord,
    PointState,
)


class Stage(Enum):
    """What a point does now: a word, and the mark that stands for it in a map."""

    FINISHED = ("finished", "=")
    """Trained to the tokens of its size."""
    STOPPED = ("stopped on the way", "|")
    """Trained for the wanted tokens; a search may ask for more."""
    PRUNED = ("pruned", "x")
    TRAINING = ("training", ">")
    WAITING = ("waiting", ".")
    """For a slot, a Job or its first report."""
    PAUSED = ("paused", "p")
    NOT_CHOSEN = ("not chosen", "-")
    DIVERGED = ("diverged", "~")
    FAILED = ("failed", "!")

    def __init__(self, word: str, mark: str) -> None:
        self.word, self.mark = word, mark


UNDER_WAY = frozenset({Stage.TRAINING, Stage.WAITING})


def stage_of(record: PointRecord, *, is_training: bool = False) -> Stage:
    """What a point does now by its record; only its reports can tell whether it trains."""
    if record.state is PointState.DIVERGED:
        return Stage.DIVERGED
    if record.state in FAILED_FOR_GOOD:
        return Stage.FAILED
    if record.intent.action is IntentAction.PRUNE:
        return Stage.PRUNED
    if record.state is PointState.SUCCEEDED:
        is_short = record.intent.tokens and record.trained_for < record.wanted_tokens
        return Stage.STOPPED if is_short else Stage.FINISHED
    if record.intent.action is IntentAction.PAUSE:
        return Stage.NOT_CHOSEN if record.intent.reason == NOT_CHOSEN else Stage.PAUSED
    return Stage.TRAINING if is_training else Stage.WAITING


def stopped_in_words(record: PointRecord) -> str:
    """Why a point that is not finished goes on no more; empty: it is finished, or goes on."""
    stage = stage_of(record)
    return stage.word if stage in (Stage.STOPPED, Stage.PRUNED, Stage.PAUSED) else ""
