"""What a search is asked: the sizes of the spec, and its points as the ledger has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isoloss_contract.ledger import FAILED_FOR_GOOD, IntentAction, Ledger, PointRecord
from isoloss_operator.api import MAX_POINTS, ScalingSweepSpec
from isoloss_operator.decide.search_steps import SearchedPoint, SearchedSize, SearchRequest
from isoloss_operator.planning.points import PlannedPoint, PlannedProxy

SEEDS = 2**31
"""Seeds of the API: the number after the last one is the first."""


def search_request(
    spec: ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    flops_left: float | None,
) -> SearchRequest:
    """The step to decide now."""
    proxies = {point.proxy.name: point.proxy for point in points.values()}
    search = spec.search
    room = max(MAX_POINTS - len(ledger.points), 0)
    repeated = sum(points[record.key].seed != spec.training.seed for record in ledger.points)
    most = search.extend_grid.limit(len(ledger.placements))
    return SearchRequest(
        sizes=tuple(_size(spec, proxies[proxy.name]) for proxy in spec.proxies),
        points=tuple(_point(r, replicate_number(spec, points[r.key])) for r in ledger.points),
        sequence_length=spec.data.sequence_length,
        learning_rate_precision=float(search.precision.learning_rate),
        batch_size_precision=float(search.precision.batch_size),
        max_added_points=min(most, len(ledger.additions) - repeated + room),
        replicates=min(search.replicates, repeated + room),
        flops_left=flops_left,
    )


def search_inputs(spec: ScalingSweepSpec, records: Sequence[PointRecord]) -> list[object]:
    """What a step depends on in addition to trajectories: a different one is another step."""
    sizes = [
        [proxy.name, proxy.tokens, spec.grid_of(proxy).model_dump(mode="json")]
        for proxy in spec.proxies
    ]
    budget = None if spec.budget is None else spec.budget.model_dump(mode="json")
    points = [[r.key, str(r.state), str(r.intent.action), r.intent.tokens] for r in records]
    # Where points are placed shows in the sizes.
    search = spec.search.model_dump(mode="json", exclude={"placement", "prior"})
    return [search, budget, sizes, points]


def replicate_number(spec: ScalingSweepSpec, point: PlannedPoint) -> int:
    """n of a repeat with the n-th seed after the sweep's, 0 of a point with the sweep's own."""
    return (point.seed - spec.training.seed) % SEEDS


def replicate_seed(spec: ScalingSweepSpec, number: int) -> int:
    """The seed of the repeat of this number."""
    return (spec.training.seed + number) % SEEDS


def _size(spec: ScalingSweepSpec, proxy: PlannedProxy) -> SearchedSize:
    grid = spec.grid_of(spec.proxies[proxy.index])
    return SearchedSize(
        name=proxy.name,
        parameters=proxy.parameters.active,
        tokens=proxy.tokens,
        batch_sizes=grid.batch_sizes,
        learning_rates=tuple(float(rate) for rate in grid.learning_rates),
    )


def _point(record: PointRecord, replicate: int) -> SearchedPoint:
    return SearchedPoint(
        key=record.key,
        size=record.proxy,
        batch_size=record.batch_size,
        learning_rate=record.learning_rate,
        wanted_tokens=min(record.intent.tokens, record.wanted_tokens),
        pruned=record.intent.action is IntentAction.PRUNE,
        failed=record.state in FAILED_FOR_GOOD,
        replicate=replicate,
    )
