"""How a run ends, and who may end it before its time."""

from __future__ import annotations

from dataclasses import dataclass

from isoloss_contract.records import Outcome
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.reporter import Reporter
from isoloss_trainer.termination import Interrupted

SUPERSEDED = 2
"""Reason to end that outranks a stop request: what another attempt writes must stand."""


@dataclass(frozen=True)
class Ending:
    """How a run ended, or SUCCEEDED while it lasts."""

    outcome: Outcome
    message: str = ""
    diverged_at_tokens: int | None = None

    @classmethod
    def divergence(cls, tokens: int) -> Ending:
        """Found at so many tokens."""
        return cls(Outcome.DIVERGED, f"diverged at {tokens} tokens", tokens)


class StopRequested(Exception):
    """SIGTERM reached one of the processes."""


def raise_if_ending(attempt: Attempt, reporter: Reporter) -> None:
    """Raises StopRequested or Interrupted, in every process at the same step: one that left alone would
    keep the others waiting for it."""
    reason = int(attempt.interruption.requested)
    if reporter.superseded is not None:
        reason = SUPERSEDED
    reason = attempt.world.largest(reason)
    if reason == SUPERSEDED:
        raise reporter.superseded or Interrupted("Superseded", "another attempt took over")
    if reason:
        raise StopRequested
