"""The sequential search of a sweep: what it is asked, what its steps change in the ledger, and what is said of it.

What it decides is isoloss.search, which runs in the process of a fit.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from isoloss.formatting import flops as flops_in_words
from isoloss.formatting import number, precise
from isoloss.search import Point, SearchOptions, Seen, Size
from isoloss_contract.ledger import (
    FAILED_FOR_GOOD,
    AddedPoint,
    Intent,
    IntentAction,
    Ledger,
    PointRecord,
    PointState,
)
from isoloss_contract.records import MAX_BATCH_SIZE, DataManifest
from isoloss_operator import api
from isoloss_operator.api import statuses
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.events import MAX_EVENT_MESSAGE, NAMED
from isoloss_operator.decide.fits import (
    PointDecision,
    SearchRequest,
    SearchStep,
)
from isoloss_operator.decide.jobs.attempts import planned
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.planning.placement import placed_sizes
from isoloss_operator.planning.points import (
    SEEDS,
    Continued,
    PlannedPoint,
    PlannedProxy,
    plan_points,
)
from isoloss_operator.planning.specs import FIRST_JUDGED_SHARE

ENDINGS: Final[Mapping[str, str]] = {
    "PrecisionReached": "the optimum is known to search.precision",
    "RegretNegligible": "the remaining uncertainty about the optimum costs almost nothing",
    "NothingLeft": "no point near the optima is left to train",
    "LearningRateAtEdge": (
        "the best point of the cheaper size is at an edge of the learning rates, far from those of the larger one, and "
        "spec.search.extendGrid.maxPoints allows no more points: move learningRates, or raise it"
    ),
    "BatchSizeAtEdge": (
        "the best point of the cheaper size is at an edge of the batch sizes, far from those of the larger one, and "
        "spec.search.extendGrid.maxPoints allows no more points: move batchSizes, or raise it"
    ),
    "AllDiverged": (
        "every point of the cheapest size diverged, and spec.search.extendGrid.maxPoints allows no smaller learning "
        "rate: lower learningRates, or raise it"
    ),
    "BudgetExhausted": "no further point fits into spec.budget",
}
"""isoloss.search.StopReason in words."""

# ---------------------------------------------------------------------------------- what it is asked


def search_request(
    spec: api.ScalingSweepSpec,
    ledger: Ledger,
    points: Mapping[str, PlannedPoint],
    flops_left: float,
    seconds_left: float,
    seconds_per_flop: Mapping[str, float],
) -> SearchRequest:
    """The step to decide now. What is left of the budget is infinite if that does not limit it; `seconds_per_flop` by size."""
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
    decisions = {_decided(decision): decision for decision in step.decisions}
    points = tuple(
        replace(record, intent=_intent(decision, record.trained_for))
        if (decision := decisions.pop(_point(spec, planned_points[record.key]), None))
        else record
        for record in ledger.points
    )
    if points == ledger.points and not decisions:
        return ledger
    return _with_added(ledger.replace(points=points), decisions.values(), spec, manifest)


def _decided(decision: PointDecision) -> Point:
    """The point that a decision is about."""
    return Point(decision.size, decision.batch_size, decision.learning_rate, decision.replicate)


def _intent(decision: PointDecision, trained_for: int) -> Intent:
    is_pruned = decision.action is IntentAction.PRUNE
    # A pruned point wants what it has: it is done, and the fit uses its trajectory.
    tokens = trained_for if is_pruned else decision.tokens
    return Intent(decision.action, tokens, decision.reason, decision.bound)


def _with_added(
    ledger: Ledger,
    decisions: Iterable[PointDecision],
    spec: api.ScalingSweepSpec,
    manifest: DataManifest,
) -> Ledger:
    """The points of decisions that the ledger does not have, planned like any other from now on."""
    wanted = {_decided(decision): decision for decision in decisions if decision.added}
    if not wanted:
        return ledger
    additions = (
        *ledger.additions,
        *(
            AddedPoint(
                decision.size,
                decision.batch_size,
                decision.learning_rate,
                decision.reason,
                (spec.training.seed + decision.replicate) % SEEDS if decision.replicate else None,
            )
            for decision in wanted.values()
        ),
    )
    former = {record.key: record for record in ledger.former}
    records = []
    continued = Continued.of(ledger.checkpoints, ledger.neighbourhoods)
    for point in plan_points(spec, manifest, additions, continued):
        if decision := wanted.get(_point(spec, point)):
            known = former.pop(point.key, None)
            intent = _intent(decision, 0 if known is None else known.trained_for)
            records.append(replace(planned(point, known), intent=intent))
    return ledger.replace(
        points=(*ledger.points, *records), former=tuple(former.values()), additions=additions
    )


# ------------------------------------------------------------------------------ what the status says


def search_status(
    spec: api.ScalingSweepSpec,
    ledger: Ledger,
    points: Iterable[PlannedPoint],
    ended: str,
) -> statuses.SearchStatus:
    """`points` are the planned ones, `ended` says why the search is over; empty: it goes on."""
    records = ledger.points
    pruned = [r for r in records if r.intent.action is IntentAction.PRUNE]
    finished = [r for r in records if r.is_finished]
    untouched = [r for r in records if not r.intent.tokens and not r.tokens]
    planned = list(points)
    grid = planned[: spec.points]
    repeated = {point.key for point in planned if replicate_number(spec, point)}
    not_beyond = repeated | {point.key for point in grid}
    return statuses.SearchStatus(
        ended=ended,
        finished=len(finished),
        # With an intermediate result that has all the tokens that are wanted for now.
        paused=sum(
            r.state is PointState.SUCCEEDED
            and r.intent.action is IntentAction.RUN
            and not r.is_finished
            for r in records
        ),
        pruned=len(pruned),
        not_chosen=len(untouched),
        added=sum(r.key not in not_beyond for r in records),
        replicates=sum(r.key in repeated for r in records),
        saved_flops=precise(sum(p.flops for p in grid) - sum(_flops(r) for r in records)),
        placed=tuple(
            statuses.PlacedSizeStatus(
                proxy=placement.proxy,
                source=placement.source,
                learning_rates=grid.learning_rates,
                batch_sizes=grid.batch_sizes,
            )
            for placement, grid in placed_sizes(spec, ledger.placements)
        ),
    )


def _flops(record: PointRecord) -> float:
    """FLOPs of a point, up to the tokens it is trained for or wanted to be."""
    wanted = min(record.intent.tokens, record.wanted_tokens)
    tokens = record.tokens if record.state is PointState.DIVERGED else max(record.tokens, wanted)
    return record.flops_per_token * tokens


# ----------------------------------------------------------------------------------- what events say


RUN_ON, ADDED, REPEATED, PRUNED = "run on", "added", "repeated with other seeds", "pruned"


def ended_in_words(ended: str) -> str:
    """Why the search is over, by one of isoloss.search.StopReason."""
    return f"The search is over ({ended}): {ENDINGS.get(ended, ended)}."


def step_ended_in_words(step: SearchStep) -> str:
    """Why the search is over by its last step, which says what it begins with if the budget does not cover that."""
    message = ended_in_words(step.ended)
    if step.first_rung_flops is None:
        return message
    first = first_rung_in_words(step.first_rung_flops, step.first_rung_seconds)
    return f"{message} It begins with {first}: raise spec.budget above that and what is spent."


def first_rung_in_words(flops: float, seconds: float | None) -> str:
    """What a search trains first; `seconds` of accelerators if those are what the budget lacks."""
    hours = "" if seconds is None else f", about {number(seconds / 3600)} accelerator hours"
    return (
        f"the whole grid of the cheapest size, to {FIRST_JUDGED_SHARE:.0%} of its tokens, which takes "
        f"{flops_in_words(flops)} FLOPs{hours}"
    )


def search_events(ledger: Ledger, step: SearchStep | None, previous: str) -> tuple[Event, ...]:
    """One event about a step: its points, named as in the ledger, or that the search is over.

    `previous` is why it ended by the status as observed.
    """
    if step is None or (step.ended and step.ended == previous):
        return ()
    if step.ended:
        message = step_ended_in_words(step)
        return (Event("Normal", Reason.SEARCH_STEP, message),)
    names: dict[tuple[str, int, float], str] = {}
    for r in ledger.points:  # replicates come after the point that they repeat
        names.setdefault((r.proxy, r.batch_size, r.learning_rate), r.name)
    groups: dict[str, list[PointDecision]] = {
        words: [] for words in (RUN_ON, ADDED, REPEATED, PRUNED)
    }
    for decision in step.decisions:
        groups[_group(decision)].append(decision)
    parts = (_part(found, words, names) for words, found in groups.items())
    message = shortened("; ".join(part for part in parts if part), MAX_EVENT_MESSAGE)
    return (Event("Normal", Reason.SEARCH_STEP, message),)


def _group(decision: PointDecision) -> str:
    if decision.action is IntentAction.PRUNE:
        return PRUNED
    if decision.replicate:
        return REPEATED
    return ADDED if decision.added else RUN_ON


def _part(
    decisions: Sequence[PointDecision], words: str, names: dict[tuple[str, int, float], str]
) -> str:
    if not decisions:
        return ""
    flops = sum(decision.flops for decision in decisions)
    verb = "saving" if words == PRUNED else "for"
    more = f" and {len(decisions) - NAMED} more" if len(decisions) > NAMED else ""
    shown = ", ".join(_named(d, names) for d in decisions[:NAMED])
    return f"{len(decisions)} {words}, {verb} {flops_in_words(flops)} FLOPs: {shown}{more}"


def _named(decision: PointDecision, names: dict[tuple[str, int, float], str]) -> str:
    place = decision.size, decision.batch_size, decision.learning_rate
    facts: Iterable[str] = [decision.reason]
    if decision.bound is not None:
        facts = [decision.reason, f"by {decision.bound:.2g} nats", f"risk {decision.risk:.1e}"]
    return f"{names.get(place, decision.size)} ({', '.join(facts)})"
