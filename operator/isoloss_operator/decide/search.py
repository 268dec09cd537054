"""The sequential search of a sweep: what it is asked, and what its steps change in the ledger.

What it decides is isoloss.search, which runs in the process of a fit.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from isoloss.search import Point, SearchOptions, Seen, Size
from isoloss_contract.ledger import (
    BUDGET_SPENT,
    FAILED_FOR_GOOD,
    AddedPoint,
    Intent,
    IntentAction,
    Ledger,
    PointRecord,
)
from isoloss_contract.records import MAX_BATCH_SIZE, DataManifest
from isoloss_operator import api
from isoloss_operator.decide.attempts import planned
from isoloss_operator.decide.fits import (
    PointDecision,
    SearchRequest,
    SearchStep,
)
from isoloss_operator.decide.record import fit_inputs
from isoloss_operator.decide.tasks import TaskSet
from isoloss_operator.planning.points import (
    SEEDS,
    Continued,
    Place,
    PlannedPoint,
    PlannedProxy,
    plan_points,
)

# ---------------------------------------------------------------------------------- what it is asked


@dataclass(frozen=True)
class DueStep:
    """The step of the search that is due once every point has reached its target, if the budget has room."""

    request: SearchRequest | None = None
    """None: no step is due."""
    inputs: str = ""
    """FitRequest.inputs of a fit of all points that are done, with this step if one is due."""
    step: SearchStep | None = None
    """What it decided; None before that is known."""
    ended: str = ""
    """Why the search is over, one of isoloss.search.StopReason; empty: it goes on, or there is none."""


def due_step(
    tasks: TaskSet,
    ledger: Ledger,
    left: tuple[float, float],
    seconds_per_flop: Mapping[str, float],
    *,
    is_quiet: bool,
    has_room: bool,
) -> DueStep:
    """`left` are FLOPs and accelerator seconds of the budget, infinite if that does not limit them; `seconds_per_flop` by size;
    `is_quiet`: no task is running; `has_room`: the budget has, for what is chosen already."""
    spec, fit, request = tasks.spec, tasks.observed.fit, None
    if spec.searches and is_quiet and has_room:
        request = _request(spec, ledger, tasks.points, *left, seconds_per_flop)
    inputs = fit_inputs(spec, ledger.points, final=True, search=request is not None)
    if request is None:
        return DueStep(None, inputs, ended=BUDGET_SPENT if spec.searches and is_quiet else "")
    step = fit.step if fit is not None and fit.inputs == inputs else None
    return DueStep(request, inputs, step, "" if step is None else step.ended)


def _request(
    spec: api.ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    flops_left: float,
    seconds_left: float,
    seconds_per_flop: Mapping[str, float],
) -> SearchRequest:
    """The step to decide now."""
    search = spec.search
    room = max(api.MAX_POINTS - len(ledger.points), 0)
    repeated = sum(points[record.key].seed != spec.training.seed for record in ledger.points)
    most = search.extend_grid.limit(len(ledger.placements))
    return SearchRequest(
        sizes=search_sizes(spec, points.values(), seconds_per_flop),
        points={record.key: _seen(spec, points[record.key], record) for record in ledger.points},
        options=SearchOptions(
            learning_rate_precision=float(search.precision.learning_rate),
            batch_size_precision=float(search.precision.batch_size),
            max_added_points=min(most, len(ledger.additions) - repeated + room),
            replicates=min(search.replicates, repeated + room),
            seconds_left=None if math.isinf(seconds_left) else max(seconds_left, 0.0),
        ),
        flops_left=None if math.isinf(flops_left) else flops_left,
    )


def search_sizes(
    spec: api.ScalingSweepSpec,
    points: Iterable[PlannedPoint],
    seconds_per_flop: Mapping[str, float],
) -> tuple[Size, ...]:
    """The sizes to the search, in the order of the spec; accelerator seconds per FLOP by size."""
    proxies = {point.proxy.name: point.proxy for point in points}
    return tuple(
        _size(spec, proxies[proxy.name], seconds_per_flop[proxy.name]) for proxy in spec.proxies
    )


def replicate_number(spec: api.ScalingSweepSpec, point: PlannedPoint) -> int:
    """n of a repeat with the n-th seed after the sweep's, 0 of a point with the sweep's own."""
    return (point.seed - spec.training.seed) % SEEDS


def _size(spec: api.ScalingSweepSpec, proxy: PlannedProxy, seconds_per_flop: float) -> Size:
    grid = spec.grid_of(spec.proxies[proxy.index])
    return Size(
        name=proxy.name,
        params=proxy.parameters.active,
        tokens=proxy.tokens,
        batch_sizes=grid.batch_sizes,
        learning_rates=tuple(float(rate) for rate in grid.learning_rates),
        largest_batch_size=_largest_batch(spec, proxy.tokens),
        sequence_length=spec.data.sequence_length,
        seconds_per_flop=seconds_per_flop,
    )


def _largest_batch(spec: api.ScalingSweepSpec, tokens: int) -> int:
    """Sequences of the largest batch that may be added: what is too short for a batch of the spec's is for any."""
    most = tokens // (spec.fewest_steps * spec.data.sequence_length)
    return max(min(most, MAX_BATCH_SIZE), 1)


def _seen(spec: api.ScalingSweepSpec, point: PlannedPoint, record: PointRecord) -> Seen:
    """As the ledger has it, without its trajectory."""
    return Seen(
        _point(spec, point),
        wanted=min(record.intent.tokens, record.wanted_tokens),
        pruned=record.intent.action is IntentAction.PRUNE,
        failed=record.state in FAILED_FOR_GOOD,
    )


def _point(spec: api.ScalingSweepSpec, point: PlannedPoint) -> Point:
    """What it is to the search."""
    number = replicate_number(spec, point)
    return Point(point.proxy.name, point.batch_size, point.learning_rate, number)


# ------------------------------------------------------------------------------- what a step changes


def stepped(
    ledger: Ledger,
    planned_points: Mapping[str, PlannedPoint],
    step: SearchStep,
    spec: api.ScalingSweepSpec,
    manifest: DataManifest,
) -> Ledger:
    """The ledger of the planned points once a step's decisions are in it."""
    decisions = {_decided(spec, decision): decision for decision in step.decisions}
    points = tuple(
        replace(record, intent=_intent(decision, record.trained_for))
        if (decision := decisions.pop(planned_points[record.key].place, None))
        else record
        for record in ledger.points
    )
    added = {place: decision for place, decision in decisions.items() if decision.added}
    if points == ledger.points and not added:
        return ledger
    return _with_added(ledger.replace(points=points), added, spec, manifest)


def _decided(spec: api.ScalingSweepSpec, decision: PointDecision) -> Place:
    """The point that a decision is about."""
    seed = (spec.training.seed + decision.replicate) % SEEDS
    return decision.size, decision.batch_size, decision.learning_rate, seed


def _intent(decision: PointDecision, trained_for: int) -> Intent:
    is_pruned = decision.action is IntentAction.PRUNE
    # A pruned point wants what it has: it is done, and the fit uses its trajectory.
    tokens = trained_for if is_pruned else decision.tokens
    return Intent(decision.action, tokens, decision.reason, decision.bound)


def _with_added(
    ledger: Ledger,
    added: Mapping[Place, PointDecision],
    spec: api.ScalingSweepSpec,
    manifest: DataManifest,
) -> Ledger:
    """The points of decisions that the ledger does not have, planned like any other from now on."""
    if not added:
        return ledger
    additions = (
        *ledger.additions,
        *(
            AddedPoint(*place[:3], decision.reason, place[3] if decision.replicate else None)
            for place, decision in added.items()
        ),
    )
    intents = {place: _intent(decision, 0) for place, decision in added.items()}
    former = {record.key: record for record in ledger.former}
    records = []
    continued = Continued.of(ledger.checkpoints, ledger.neighbourhoods)
    for point in plan_points(spec, manifest, additions, continued):
        if point.place in intents:
            known = former.pop(point.key, None)
            records.append(replace(planned(point, known), intent=intents[point.place]))
    return ledger.replace(
        points=(*ledger.points, *records), former=tuple(former.values()), additions=additions
    )
