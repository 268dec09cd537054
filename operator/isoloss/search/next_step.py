"""What a sequential search wants next. Pure: the same observations give the same step.

Sizes are searched from the cheapest to the dearest. The cheapest runs on its whole grid and races at rungs;
each other begins where the laws of the cheaper ones aim, and grows until its best point has neighbours on all
sides. Then the laws of all sizes say whether they know the answer well enough; while they do not, what was
left out is trained, nearest to the optimum and cheapest first. At worst that is the exhaustive sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from isoloss.laws import Run
from isoloss.search.aiming import Located, aimed_cells, locate, moved_by_trend
from isoloss.search.forecast import Excess, leader_of
from isoloss.search.lattice import distance, grid_points, larger_batches, neighbours
from isoloss.search.model import (
    Decision,
    Point,
    Reason,
    SearchOptions,
    Seen,
    Size,
    Step,
    StopReason,
)
from isoloss_contract.ledger import IntentAction

FEWEST_SHARE = 0.3
"""Of the size's tokens, below which no point is judged: ranks that early do not last."""
RUNGS = (0.3, 0.6, 1.0)
"""Shares of the size's tokens at which points are judged."""
REACHED = 0.99
"""Share of its wanted tokens at which a point is there: runs end at whole steps."""
USUAL_CURVATURE = 0.3
"""Of ln D over the square of ln LR or ln B, on the published sweeps."""
INSIDE = 0.25
"""Steps from an edge at which an optimum is well inside."""
ARMS_SHARE = 0.3
ANCHOR_SHARE = 1.0
"""Of its tokens to which the cheapest size's points are trained that are not ruled out."""
USUAL_NOISE = 0.0015
"""Nats from seed to seed that are assumed at the least: 0.0013 was measured at 124 M parameters."""


@dataclass(frozen=True)
class _Search:
    sizes: tuple[Size, ...]
    """Cheapest first."""
    seen: tuple[Seen, ...]
    """In the order of their points, so that the caller's order does not matter."""
    options: SearchOptions
    noise: float

    def of(self, size: Size) -> tuple[Seen, ...]:
        return tuple(s for s in self.seen if s.point.size == size.name)

    def open(self, size: Size) -> list[Seen]:
        return [s for s in self.of(size) if s.wanted > 0.0 and not s.closed]

    def runs(self, sizes: Sequence[Size]) -> list[Run]:
        names = {size.name for size in sizes}
        return [
            replace(s.run, finished=s.tokens >= REACHED * self.size(s.point).tokens)
            for s in self.seen
            if s.run is not None and len(s.run.tokens) and s.point.size in names
        ]

    def size(self, point: Point) -> Size:
        return next(size for size in self.sizes if size.name == point.size)

    @property
    def additions_left(self) -> int:
        grids = {point for size in self.sizes for point in grid_points(size)}
        added = sum(s.point not in grids for s in self.seen)
        return max(self.options.max_added_points - added, 0)


@dataclass(frozen=True)
class _Race:
    """One size's standing."""

    leader: Point
    excesses: dict[Point, Excess]


def next_step(sizes: Sequence[Size], seen: Sequence[Seen], options: SearchOptions) -> Step:
    """The next decisions, or why the search is over.

    A rung is judged once everything that runs has reached its target: until then there is nothing to decide.
    Points of the grid that were never wanted may be left out of `seen`.
    """
    search = _search(sizes, seen, options)
    if any(not _arrived(s) for s in search.seen):
        return Step()
    for index, size in enumerate(search.sizes):
        if not any(s.wanted > 0.0 for s in search.of(size)):
            return _affordable(search, Step(tuple(_begin(search, index))))
        decisions = _race(search, size, all_survive=index == 0)
        if decisions:
            return _affordable(search, Step(tuple(decisions)))
    return _affordable(search, _narrow(search))


def _search(sizes: Sequence[Size], seen: Sequence[Seen], options: SearchOptions) -> _Search:
    ordered = tuple(sorted(sizes, key=lambda size: (size.point_flops, size.name)))
    search = _Search(ordered, tuple(sorted(seen, key=lambda s: s.point)), options, USUAL_NOISE)
    return replace(search, noise=_noise(search))


def _noise(search: _Search) -> float:
    """As stated, else as the runs scatter about the laws' surface: never less than is usual."""
    if search.options.run_noise is not None:
        return search.options.run_noise
    fit = replace(search.options.fit, bootstrap_samples=10)
    located = locate(search.runs(search.sizes), search.sizes[-1], fit)
    if located is None or located.residual_rms is None:
        return USUAL_NOISE
    return max(USUAL_NOISE, located.residual_rms)


def _arrived(seen: Seen) -> bool:
    return seen.closed or seen.tokens >= REACHED * seen.wanted


# ------------------------------------------------------------------------------ where a size begins


def _begin(search: _Search, index: int) -> Iterator[Decision]:
    size = search.sizes[index]
    if index == 0:
        for point in grid_points(size):
            yield _run(search, point, RUNGS[0], Reason.SMALLEST_SIZE)
        return
    cheaper = search.sizes[:index]
    located = locate(search.runs(cheaper), size, search.options.fit)
    nearest = cheaper[-1]
    race = _standing(search, nearest)
    fallback = moved_by_trend(race.leader if race else _middle(nearest), nearest, size)
    for point in aimed_cells(size, search.of(size), located, fallback):
        yield _run(search, point, RUNGS[0], Reason.AIMED)


def _middle(size: Size) -> Point:
    points = grid_points(size)
    return points[len(points) // 2]


# -------------------------------------------------------------------------------------- the race


def _standing(search: _Search, size: Size) -> _Race | None:
    """Of the points that went far enough to be judged; None without any."""
    runs = {
        s.point: s.run
        for s in search.open(size)
        if s.run is not None and s.tokens >= FEWEST_SHARE * size.tokens
    }
    return _Race(*leader_of(runs, size.tokens, search.noise)) if runs else None


def _race(search: _Search, size: Size, *, all_survive: bool) -> list[Decision]:
    """Prunes, then what is missing beside the leader, then whoever runs on; nothing: the size is settled."""
    race = _standing(search, size)
    if race is None:
        return []
    pruned = list(_prunes(search, size, race))
    missing = list(_missing_neighbours(search, size, race))
    if missing:
        return [*pruned, *missing]
    gone = {decision.point for decision in pruned}
    left = [s for s in search.open(size) if s.point not in gone]
    return [*pruned, *_runs_on(search, size, race.leader, left, all_survive=all_survive)]


def _prunes(search: _Search, size: Size, race: _Race) -> Iterator[Decision]:
    safe = _kept(search, size, race.leader)
    for s in search.open(size):
        found = race.excesses.get(s.point)
        unfinished = s.tokens < REACHED * size.tokens
        if found is None or not unfinished or s.point in safe or found.low <= 0.0:
            continue
        yield Decision(
            s.point,
            IntentAction.PRUNE,
            s.tokens,
            Reason.ABOVE_LEADER,
            bound=found.low,
            flops=size.point_flops * (1.0 - s.tokens / size.tokens),
            risk=found.risk,
        )


def _kept(search: _Search, size: Size, leader: Point) -> set[Point]:
    """Points that are never pruned: an optimum is known by the points on its sides.

    Also the larger-batch neighbours, diagonal ones too, and at the cheapest size, which tells the curvature,
    every diagonal.
    """
    own = search.of(size)
    beside = neighbours(size, own, leader)
    kept = {leader, *beside, *larger_batches(size, own, leader)}
    if size == search.sizes[0]:
        batches = {p.batch_size for p in beside}
        rates = {p.learning_rate for p in beside}
        kept |= {s.point for s in own if {s.point.batch_size} <= batches and {s.point.learning_rate} <= rates}
    return kept


def _missing_neighbours(
    search: _Search, size: Size, race: _Race, *, strict: bool = False
) -> Iterator[Decision]:
    """Cells beside the leader on sides where nothing was tried, unless the optimum is on its other side.

    With `strict` they are wanted wherever the optimum may be.
    """
    known = {s.point for s in search.of(size) if s.wanted > 0.0 or s.closed}
    grid = set(grid_points(size))
    left = search.additions_left
    for point in neighbours(size, search.of(size), race.leader):
        tried = point in known or any(_as_far(point, other, race.leader) for other in known)
        if tried or (not strict and _is_inside(race, point)):
            continue
        if point in grid:
            yield _run(search, point, RUNGS[0], Reason.BESIDE_LEADER)
        elif left > 0:
            left -= 1
            yield _run(search, point, RUNGS[0], Reason.BEYOND_EDGE, added=True)


def _as_far(point: Point, other: Point, leader: Point) -> bool:
    """Whether `other` is at least as far from the leader as its neighbour `point`, on the same side."""
    if point.batch_size == leader.batch_size:
        a, b = point.learning_rate, other.learning_rate
        return (b >= a > leader.learning_rate) or (b <= a < leader.learning_rate)
    a, b = point.batch_size, other.batch_size
    return (b >= a > leader.batch_size) or (b <= a < leader.batch_size)


def _is_inside(race: _Race, point: Point) -> bool:
    """Whether the neighbour opposite to `point` is so nearly as good that the optimum is on its side.

    A parabola of the usual curvature through both has its vertex more than a quarter of the way to it.
    """
    for other, found in race.excesses.items():
        if _opposite(point, other, race.leader):
            step = distance(other, race.leader)
            if found.mean < found.steepness * USUAL_CURVATURE * step**2 * (0.5 - INSIDE):
                return True
    return False


def _opposite(point: Point, other: Point, leader: Point) -> bool:
    """Whether `other` is on the leader's line through `point`, on the other side of the leader."""
    if point.batch_size == leader.batch_size:
        if other.batch_size != leader.batch_size:
            return False
        return (point.learning_rate > leader.learning_rate) != (
            other.learning_rate >= leader.learning_rate
        ) and other.learning_rate != leader.learning_rate
    if other.learning_rate != leader.learning_rate:
        return False
    return (point.batch_size > leader.batch_size) != (
        other.batch_size >= leader.batch_size
    ) and other.batch_size != leader.batch_size


def _runs_on(
    search: _Search, size: Size, leader: Point, left: Sequence[Seen], *, all_survive: bool
) -> Iterator[Decision]:
    """The leader to its end; where all survive, every point that is left to the next rung."""
    if not all_survive:
        if any(s.point == leader and s.tokens < REACHED * size.tokens for s in left):
            yield _run(search, leader, 1.0, Reason.LEADER)
            return
        beside = {leader, *neighbours(size, search.of(size), leader)}
        for s in left:
            if s.point in beside and s.tokens < REACHED * ARMS_SHARE * size.tokens:
                yield _run(search, s.point, ARMS_SHARE, Reason.SURVIVOR)
        return
    unfinished = [s for s in left if s.tokens < REACHED * ANCHOR_SHARE * size.tokens]
    if not unfinished:
        if any(s.point == leader and s.tokens < REACHED * size.tokens for s in left):
            yield _run(search, leader, 1.0, Reason.LEADER)
        return
    behind = min(s.tokens for s in unfinished) / size.tokens
    rung = next(rung for rung in RUNGS if rung * REACHED > behind)
    for s in unfinished:
        if s.tokens < rung * REACHED * size.tokens:
            reason = Reason.LEADER if s.point == leader else Reason.SURVIVOR
            yield _run(search, s.point, rung, reason)


# ------------------------------------------------------------------------------- is it enough


def _narrow(search: _Search) -> Step:
    """Stop where the answer is known well enough; else train what is left, nearest and cheapest first."""
    target = search.sizes[-1]
    located = locate(search.runs(search.sizes), target, search.options.fit)
    stop = _enough(search.options, located)
    if stop is not None:
        return _step((), stop, located)
    if located is None:
        for size in search.sizes:
            race = _standing(search, size)
            missing = race and list(_missing_neighbours(search, size, race, strict=True))
            if missing:
                return _step(tuple(missing), None, None)
    for decisions in _work(search):
        if decisions:
            return _step(tuple(decisions), None, located)
    return _step((), StopReason.NOTHING_LEFT, located)


def _enough(options: SearchOptions, located: Located | None) -> StopReason | None:
    if located is None:
        return None
    if located.within(options.learning_rate_precision, options.batch_size_precision):
        return StopReason.PRECISION_REACHED
    if located.regret <= options.negligible_regret:
        return StopReason.REGRET_NEGLIGIBLE
    return None


def _step(
    decisions: tuple[Decision, ...], stop: StopReason | None, located: Located | None
) -> Step:
    if located is None:
        return Step(decisions, stop)
    return Step(decisions, stop, located.learning_rate, located.batch_size)


def _work(search: _Search) -> Iterator[list[Decision]]:
    """Points that are neither done nor pruned, as they may be taken up one group after the other."""
    rings = {size.name: list(_rings(search, size)) for size in search.sizes}
    for depth in range(max(len(found) for found in rings.values())):
        for rung in RUNGS:
            for size in search.sizes:
                if depth < len(rings[size.name]):
                    yield _below(search, size, rings[size.name][depth], rung)


def _rings(search: _Search, size: Size) -> Iterator[list[Point]]:
    """The leader's neighbours, then those diagonal to it; points farther off say little of an optimum."""
    race = _standing(search, size)
    points = {*grid_points(size), *(s.point for s in search.of(size))}
    if race is None:
        yield sorted(points)
        return
    beside = {race.leader, *neighbours(size, search.of(size), race.leader)} & points
    yield sorted(beside)
    reach = max((distance(p, race.leader) for p in beside), default=0.0)
    yield sorted(p for p in points - beside if distance(p, race.leader) <= 1.5 * reach)


def _below(search: _Search, size: Size, points: Sequence[Point], rung: float) -> list[Decision]:
    known = {s.point: s for s in search.of(size)}
    found = []
    for point in points:
        seen = known.get(point, Seen(point))
        if not seen.closed and seen.tokens < REACHED * rung * size.tokens:
            found.append(_run(search, point, rung, Reason.NARROWS))
    return found


# ---------------------------------------------------------------------------------------- costs


def _run(
    search: _Search, point: Point, rung: float, reason: Reason, *, added: bool = False
) -> Decision:
    size = search.size(point)
    done = next((s.tokens for s in search.seen if s.point == point), 0.0)
    cost = size.point_flops * max(rung - done / size.tokens, 0.0)
    return Decision(point, IntentAction.RUN, rung * size.tokens, reason, added=added, flops=cost)


def _affordable(search: _Search, step: Step) -> Step:
    """The step without the runs for which the budget leaves no room."""
    budget = search.options.budget_flops
    if budget is None:
        return step
    left = budget - sum(
        search.size(s.point).point_flops * s.tokens / search.size(s.point).tokens
        for s in search.seen
    )
    kept = []
    for decision in step.decisions:
        if decision.action is IntentAction.RUN:
            if decision.flops > left:
                continue
            left -= decision.flops
        kept.append(decision)
    if step.decisions and not kept:
        return replace(step, decisions=(), stop=StopReason.BUDGET_EXHAUSTED)
    return replace(step, decisions=tuple(kept))
