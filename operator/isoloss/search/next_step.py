"""What a sequential search wants next. Pure: the same observations give the same step.

Sizes are searched from the cheapest to the most expensive. The cheapest begins on its whole grid; each other begins
where the laws of the cheaper ones aim, and grows until its best point has tried points on all sides. Then the
laws of all sizes say whether they know the answer well enough; while they do not, what is unfinished about the
optima is trained, nearest to them and cheapest first.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from isoloss.laws import Screened, screen, surface_residual
from isoloss.search import aiming, model, racing
from isoloss.search.lattice import distance, grid_points, neighbours
from isoloss.search.state import REACHED, RUNGS, State
from isoloss.usual import FEWEST_SIZES, LEAST_NOISE, USUAL_STEP
from isoloss_contract.ledger import IntentAction

DIAGONAL = 1.5
"""Times the farthest neighbour's distance, within which points are about an optimum."""
EDGES = {
    "learning_rate": model.StopReason.LEARNING_RATE_AT_EDGE,
    "batch_size": model.StopReason.BATCH_SIZE_AT_EDGE,
}
"""By the axis on which a best point is at an edge."""
COSTLY_REGRET = 0.005
"""Nats that an answer may be expected to cost at the most before points far from the optima are trained, too."""


def next_step(
    sizes: Sequence[model.Size], seen: Sequence[model.Seen], options: model.SearchOptions
) -> model.Step:
    """The next decisions, or why the search is over.

    A rung is judged once everything that runs has reached its target: until then there is nothing to decide.
    Points of the grid that were never wanted may be left out of `seen`; the others are of sizes among `sizes`, which have
    a name each. Raises InvalidRunError if a run's numbers are impossible.
    """
    state = State.of(sizes, seen, options, LEAST_NOISE)
    if any(not s.closed and s.tokens < REACHED * s.wanted for s in state.all_seen):
        return model.Step()
    runs = state.runs(state.sizes)
    screened = screen(runs, options.fit) if runs else None
    state = replace(state, noise=_noise(state, screened))
    for index, size in enumerate(state.sizes):
        if not any(s.wanted > 0.0 for s in state.seen_of(size)):
            if stop := _out_of_reach(state, index):
                return model.Step(stop=stop)
            begun = tuple(_begin(state, index))
            return _affordable(state, model.Step(begun)) if index else _first_rung(state, begun)
        decisions = racing.race(state, size)
        if decisions:
            if index == 0 and any(
                decision.reason is model.Reason.LEADER for decision in decisions
            ):
                decisions += racing.missing_replicates(state)
            return _affordable(state, model.Step(tuple(decisions)))
        if index == 0 and racing.all_diverged(state, size):
            return model.Step(stop=model.StopReason.ALL_DIVERGED)
    repeats = _affordable(state, model.Step(tuple(racing.missing_replicates(state))))
    return repeats if repeats.decisions else _affordable(state, _narrow(state, screened))


def _noise(state: State, screened: Screened | None) -> float:
    """As the runs scatter about the surface through them, of which replicates show how much is noise.

    Never less than is usual, nor than replicates differ.
    """
    if screened is None:
        return LEAST_NOISE
    measured = screened.noise_of_seeds
    scattered = surface_residual(state.runs(state.sizes), state.options.fit, screened=screened)
    if measured is None:
        return max(LEAST_NOISE, scattered or 0.0)
    at_most = measured.believed if scattered is None else min(scattered, measured.believed)
    return max(LEAST_NOISE, measured.deviation, at_most)


def _out_of_reach(state: State, index: int) -> model.StopReason | None:
    """On which axis this size would be trained in vain: the best point of the one before is at an edge that nothing may be
    added beyond, that point is far from this size's grid by itself, and there are too few sizes for laws without the two.

    None: on none, or the laws aim at the size all the same.
    """
    # Of more sizes, those that are left may do without one.
    if not index or len(state.sizes) > FEWEST_SIZES:
        return None
    size, before = state.sizes[index], state.sizes[index - 1]
    now, edges = state.race_at(before), racing.axes_at_edge(state, before)
    if now is None or not edges:
        return None
    rate, batch = aiming.moved_by_trend(now.leader, before, size)
    places = (
        ("learning_rate", rate, size.learning_rates),
        ("batch_size", batch, size.batch_sizes),
    )
    far = [
        axis
        for axis, at, lines in places
        if axis in edges and min(abs(math.log(v) - at) for v in lines) > math.log(USUAL_STEP)
    ]
    if not far or aiming.aim(state.runs([before]), size, state.options.fit) is not None:
        return None
    return EDGES[far[0]]


def _begin(state: State, index: int) -> Iterator[model.Decision]:
    """A size's first points, to the first rung."""
    size = state.sizes[index]
    if index == 0:
        for point in grid_points(size):
            yield state.run_to(point, RUNGS[0], model.Reason.SMALLEST_SIZE)
        return
    cheaper = state.sizes[:index]
    located = aiming.aim(state.runs(cheaper), size, state.options.fit)
    before = state.race_at(cheaper[-1])
    leader = before.leader if before else _middle(cheaper[-1])
    fallback = aiming.moved_by_trend(leader, cheaper[-1], size)
    for point in aiming.aimed_cells(size, state.seen_of(size), located, fallback):
        yield state.run_to(point, RUNGS[0], model.Reason.AIMED)


def _first_rung(state: State, decisions: tuple[model.Decision, ...]) -> model.Step:
    """The cheapest size's whole grid or nothing: a corner of it tells nothing of an optimum."""
    flops = sum(decision.flops for decision in decisions)
    seconds = sum(state.seconds_of(decision) for decision in decisions)
    is_too_long = seconds > state.seconds_left
    if flops <= state.flops_left and not is_too_long:
        return model.Step(decisions)
    return model.Step(
        stop=model.StopReason.BUDGET_EXHAUSTED,
        first_rung_flops=flops,
        first_rung_seconds=seconds if is_too_long else None,
    )


def _middle(size: model.Size) -> model.Point:
    points = grid_points(size)
    return points[len(points) // 2]


def _narrow(state: State, screened: Screened | None) -> model.Step:
    """Stop if the answer is known well enough; else train what is left, nearest and cheapest first."""
    target = state.sizes[-1]
    runs = state.runs(state.sizes)
    found = aiming.locate(runs, target, state.options.fit, screened) if runs else None
    located = found if isinstance(found, aiming.Located) else None
    stop = _enough(state.options, located)
    # Laws of cheaper sizes alone may be sure of themselves: points of this size on all sides of its best one must
    # have borne them out. And a refusal is most often that of an edge: no estimate is trusted to say that it is none.
    unsure = state.sizes if located is None else (target,) if stop is not None else ()
    for size in unsure:
        now = state.race_at(size)
        missing = list(racing.missing_neighbours(state, size, now, strict=True)) if now else []
        if missing:
            return _step(tuple(missing), None, located)
    if state.race_at(target) is None:
        stop = None
    if stop is None:
        is_costly = located is not None and located.regret > COSTLY_REGRET
        for decisions in _work(state, depths=3 if is_costly else 2):
            if decisions:
                return _step(tuple(decisions), None, located)
    # An answer for a compute that is given needs no loss-compute law, one for a checkpoint does.
    lack = found.lack if isinstance(found, aiming.Located) else found
    further = tuple(racing.permitted(state, _further(state, lack))) if lack else ()
    return _step(further, None if further else stop or model.StopReason.NOTHING_LEFT, located)


def _further(state: State, lack: aiming.Lack) -> Iterator[model.Decision]:
    """What the laws lack at the size that they name."""
    for size in state.sizes:
        now = state.race_at(size)
        if now is None or lack.params not in (None, size.params):
            continue
        if isinstance(lack, aiming.BeyondGrid):
            found = racing.beyond_outermost(
                state, size, now, axis=lack.quantity, larger=lack.larger
            )
        else:
            found = racing.missing_diagonal(state, size, now)
        for decision in found:
            yield replace(decision, reason=model.Reason.COMPLETES_LAWS)


def _enough(
    options: model.SearchOptions, located: aiming.Located | None
) -> model.StopReason | None:
    if located is None:
        return None
    if located.within(options.learning_rate_precision, options.batch_size_precision):
        return model.StopReason.PRECISION_REACHED
    if located.regret <= options.negligible_regret:
        return model.StopReason.REGRET_NEGLIGIBLE
    return None


def _step(
    decisions: tuple[model.Decision, ...],
    stop: model.StopReason | None,
    located: aiming.Located | None,
) -> model.Step:
    if located is None:
        return model.Step(decisions, stop)
    return model.Step(decisions, stop, located.learning_rate, located.batch_size)


def _work(state: State, depths: int) -> Iterator[list[model.Decision]]:
    """Points that are neither done nor pruned, as they may be taken up, one group after the other."""
    rings = {size.name: _rings(state, size) for size in state.sizes}
    for depth in range(depths):
        for rung in RUNGS:
            for size in state.sizes:
                yield _below(state, size, rings[size.name][depth], rung)


def _rings(
    state: State, size: model.Size
) -> tuple[list[model.Point], list[model.Point], list[model.Point]]:
    """The leader and its neighbours, those diagonal to it, and the rest, which says little of an optimum."""
    now = state.race_at(size)
    points = {*grid_points(size), *(s.point for s in state.seen_of(size))}
    if now is None:
        return sorted(points), [], []
    beside = {now.leader, *neighbours(size, state.seen_of(size), now.leader)} & points
    reach = DIAGONAL * max(distance(p, now.leader) for p in beside)
    diagonal = {p for p in points - beside if distance(p, now.leader) <= reach}
    return sorted(beside), sorted(diagonal), sorted(points - beside - diagonal)


def _below(
    state: State, size: model.Size, points: Sequence[model.Point], rung: float
) -> list[model.Decision]:
    known = {s.point: s for s in state.seen_of(size)}
    left = (known.get(point, model.Seen(point)) for point in points)
    return [
        state.run_to(s.point, rung, model.Reason.NARROWS)
        for s in left
        if not s.closed and not state.has(s, rung)
    ]


def _affordable(state: State, step: model.Step) -> model.Step:
    """The step without the runs for which the budget leaves no room."""
    flops_left, seconds_left = state.flops_left, state.seconds_left
    kept = []
    for decision in step.decisions:
        if decision.action is IntentAction.RUN:
            seconds = state.seconds_of(decision)
            if decision.flops > flops_left or seconds > seconds_left:
                continue
            flops_left -= decision.flops
            seconds_left -= seconds
        kept.append(decision)
    if step.decisions and not kept:
        return replace(step, decisions=(), stop=model.StopReason.BUDGET_EXHAUSTED)
    return replace(step, decisions=tuple(kept))
