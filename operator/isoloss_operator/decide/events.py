"""Events about conditions that changed and about attempts that ended: one per kind of ending, never one per point."""

from typing import Final

from isoloss_contract.ledger import Ledger, LostLedger, PointRecord
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.jobs.failures import UNCHARGED, FailureClass
from isoloss_operator.decide.plans import Event

MAX_EVENT_MESSAGE = 900
NAMED = 3
"""Points named in an event."""
LEDGER_LOST: Final = "LedgerLost"
AWAY: Final = (
    FailureClass.NODE_LOST,
    FailureClass.NODE_FAILURE,
    FailureClass.STORE_UNAVAILABLE,
)
"""Not charged, and yet for somebody to look at."""


def attempt_events(before: Ledger | None, after: Ledger) -> tuple[Event, ...]:
    """One event per class of failure among the attempts that ended between two ledgers, and one if the latter had to
    be begun anew."""
    by_failure: dict[str, list[PointRecord]] = {}
    for record in failed_between(before, after):
        by_failure.setdefault(record.attempts.last_failure, []).append(record)
    lost = after.lost if before is None or before.lost != after.lost else None
    news = () if lost is None else (Event("Warning", LEDGER_LOST, lost_in_words(lost)),)
    return news + tuple(
        _event(failure, records) for failure, records in sorted(by_failure.items())
    )


def failed_between(before: Ledger | None, after: Ledger) -> list[PointRecord]:
    """The points whose last attempt ended without a result between two ledgers, as `after` has them."""
    records = () if before is None else before.by_key.values()  # dropped ones return as they were
    known = {record.key: record.attempts.ended for record in records}
    return [
        record
        for record in after.points
        if record.attempts.last_failure and record.attempts.ended > known.get(record.key, 0)
    ]


def lost_in_words(lost: LostLedger) -> str:
    """What is not known any more, and why."""
    name = lost.kept_as.rpartition("/")[2]
    kept = f", kept as {name}" if name else ""
    return shortened(
        f"The ledger was begun anew at {lost.at}{kept}: spend, failures and decisions before are unknown. {lost.problem}",
        MAX_EVENT_MESSAGE,
    )


def _event(failure: str, records: list[PointRecord]) -> Event:
    is_charged = failure not in UNCHARGED
    more = f" and {len(records) - NAMED} more" if len(records) > NAMED else ""
    names = ", ".join(record.name for record in records[:NAMED]) + more
    failures = records[0].attempts.failures
    cause = failures[-1].message if is_charged and failures else records[0].attempts.last_message
    message = f": {cause}" if cause else ""
    return Event(
        "Warning" if is_charged or failure in AWAY else "Normal",
        failure,
        shortened(f"An attempt of {names} ended{message}", MAX_EVENT_MESSAGE),
    )
