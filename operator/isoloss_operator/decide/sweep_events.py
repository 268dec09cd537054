"""What happened to points since the last pass, as few events: one per kind of ending, never one per point."""

from __future__ import annotations

from isoloss_contract.ledger import Ledger, PointRecord
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.observation import Event
from isoloss_operator.decide.outcomes import UNCHARGED

MAX_EVENT_MESSAGE = 900
NAMED = 3
"""Points named in an event."""


def attempt_events(before: Ledger | None, after: Ledger) -> tuple[Event, ...]:
    """One event per class of failure among the attempts that ended between two ledgers."""
    known = {} if before is None else {r.key: r.attempts.ended for r in before.points}
    by_failure: dict[str, list[PointRecord]] = {}
    for record in after.points:
        attempts = record.attempts
        if attempts.last_failure and attempts.ended > known.get(record.key, 0):
            by_failure.setdefault(attempts.last_failure, []).append(record)
    return tuple(_event(failure, records) for failure, records in sorted(by_failure.items()))


def _event(failure: str, records: list[PointRecord]) -> Event:
    is_charged = failure not in UNCHARGED
    more = f" and {len(records) - NAMED} more" if len(records) > NAMED else ""
    names = ", ".join(record.name for record in records[:NAMED]) + more
    failures = records[0].attempts.failures
    words = f": {failures[-1].message}" if is_charged and failures else ""
    return Event(
        "Warning" if is_charged else "Normal",
        failure,
        shortened(f"An attempt of {names} ended{words}", MAX_EVENT_MESSAGE),
    )
