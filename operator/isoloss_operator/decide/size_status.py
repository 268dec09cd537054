"""How far each size of a sweep is, as its status says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isoloss.formatting import loss
from isoloss_contract.ledger import DONE, IntentAction, PointRecord, PointState
from isoloss_contract.records import PointProgress
from isoloss_operator.api import SizeStatus

AS_FAR = 0.99
"""Share of the tokens of the point that came furthest from which the losses of others compare with its own."""


def size_statuses(
    records: Sequence[PointRecord], reports: Mapping[str, PointProgress]
) -> tuple[SizeStatus, ...]:
    """A line per size, in the order of the records. `reports` are those of the points that have a Job, by key."""
    by_size: dict[str, list[PointRecord]] = {}
    for record in records:
        by_size.setdefault(record.proxy, []).append(record)
    return tuple(_size(name, own, reports) for name, own in by_size.items())


def _size(
    name: str, records: Sequence[PointRecord], reports: Mapping[str, PointProgress]
) -> SizeStatus:
    seen = [_tokens(record, reports.get(record.key)) for record in records]
    wanted = sum(
        max(tokens, _wanted(record)) for record, tokens in zip(records, seen, strict=True)
    )
    done = sum(record.state in DONE for record in records)
    return SizeStatus(
        proxy=name,
        progress=f"{done}/{len(records)}",
        # Rounded down: 100 says that nothing is left.
        trained=int(100 * sum(seen) / wanted) if wanted else 0,
        loss=loss(_lowest(records, seen, reports)),
    )


def _tokens(record: PointRecord, report: PointProgress | None) -> int:
    return max(record.tokens, report.tokens if report is not None else 0)


def _wanted(record: PointRecord) -> int:
    """Tokens to which it is to be trained, as things are: none of a point that a search has not chosen."""
    if record.state is not PointState.PENDING or record.intent.action is not IntentAction.RUN:
        return record.tokens
    return min(record.intent.tokens or record.wanted_tokens, record.wanted_tokens)


def _lowest(
    records: Sequence[PointRecord], seen: Sequence[int], reports: Mapping[str, PointProgress]
) -> float | None:
    """Of averaged weights if known. A point on the way has a higher loss than at its end, and is no rival yet."""
    known = [
        (tokens, found)
        for record, tokens in zip(records, seen, strict=True)
        if record.state is not PointState.DIVERGED
        and (found := _loss(record, reports.get(record.key))) is not None
    ]
    furthest = max((tokens for tokens, _ in known), default=0)
    return min((found for tokens, found in known if tokens >= AS_FAR * furthest), default=None)


def _loss(record: PointRecord, report: PointProgress | None) -> float | None:
    if report is not None and report.tokens > record.tokens and report.loss is not None:
        return report.loss
    return record.averaged_loss if record.averaged_loss is not None else record.loss
