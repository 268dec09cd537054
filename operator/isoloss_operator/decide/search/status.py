"""What a search has come to, in numbers."""

from __future__ import annotations

from collections.abc import Iterable

from isoloss_contract.ledger import IntentAction, Ledger, PointRecord, PointState
from isoloss_operator.api import PlacedSizeStatus, ScalingSweepSpec, SearchStatus
from isoloss_operator.decide.law_status import precise
from isoloss_operator.decide.search.requests import replicate_number
from isoloss_operator.planning.placement import placed_sizes
from isoloss_operator.planning.points import PlannedPoint


def search_status(
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Iterable[PlannedPoint],
    ended: str,
) -> SearchStatus:
    """`points` are the planned ones, `ended` says why the search is over; empty: it goes on."""
    records = ledger.points
    pruned = [r for r in records if r.intent.action is IntentAction.PRUNE]
    finished = [r for r in records if r.is_finished]
    untouched = [r for r in records if not r.intent.tokens and not r.tokens]
    planned = list(points)
    grid = planned[: spec.points]
    repeated = {point.key for point in planned if replicate_number(spec, point)}
    not_beyond = repeated | {point.key for point in grid}
    return SearchStatus(
        ended=ended,
        finished=len(finished),
        paused=sum(_is_paused(r) for r in records),
        pruned=len(pruned),
        not_chosen=len(untouched),
        added=sum(r.key not in not_beyond for r in records),
        replicates=sum(r.key in repeated for r in records),
        saved_flops=precise(sum(p.flops for p in grid) - sum(_flops(r) for r in records)),
        placed=tuple(
            PlacedSizeStatus(
                proxy=placement.proxy,
                source=placement.source,
                learning_rates=grid.learning_rates,
                batch_sizes=grid.batch_sizes,
            )
            for placement, grid in placed_sizes(spec, ledger.placements)
        ),
    )


def _is_paused(record: PointRecord) -> bool:
    """Whether it has an intermediate result with all the tokens that are wanted for now."""
    is_done = record.state is PointState.SUCCEEDED and record.intent.action is IntentAction.RUN
    return is_done and not record.is_finished


def _flops(record: PointRecord) -> float:
    """FLOPs of a point, up to the tokens it is trained for or wanted to be."""
    wanted = min(record.intent.tokens, record.wanted_tokens)
    tokens = record.tokens if record.state is PointState.DIVERGED else max(record.tokens, wanted)
    return record.flops_per_token * tokens
