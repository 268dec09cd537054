"""Within one size: who leads, who cannot win any more, what is missing next to the leader, who runs on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from isoloss.search.forecast import Excess
from isoloss.search.lattice import distance, grid_points, larger_batches, neighbours
from isoloss.search.model import Decision, Point, Reason, Seen, Size
from isoloss.search.state import REACHED, RUNGS, Race, State
from isoloss.usual import USUAL_CURVATURE
from isoloss_contract.ledger import IntentAction

RIVAL = 0.1
"""Probability of ending below the leader from which on a point runs on alongside it."""
INSIDE = 0.25
"""Steps from an edge at which an optimum is well inside."""


def race(state: State, size: Size) -> list[Decision]:
    """Prunes, and what is missing next to the leader, else who runs on; nothing: the size is settled."""
    now = state.race_at(size)
    if now is None:
        return list(permitted(state, _below_diverged(state, size)))
    pruned = list(_prunes(state, size, now))
    missing = list(missing_neighbours(state, size, now))
    if missing:
        return [*pruned, *missing]
    gone = {decision.point for decision in pruned}
    left = [s for s in state.open_of(size) if s.point not in gone]
    return [*pruned, *_runs_on(state, size, now, left)]


def _prunes(state: State, size: Size, now: Race) -> Iterator[Decision]:
    kept = _kept(state, size, now.leader)
    for s in state.open_of(size):
        found = now.excesses.get(s.point)
        if found is None or state.has(s, 1.0) or s.point in kept or found.low <= 0.0:
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


def _kept(state: State, size: Size, leader: Point) -> set[Point]:
    """Points that are never pruned: an optimum is known by the points on its sides.

    Those are the leader's neighbours, the diagonal ones of larger batch, too; at the cheapest size, which
    tells the curvature of all, every diagonal one.
    """
    own = state.seen_of(size)
    beside = neighbours(size, own, leader)
    kept = {leader, *beside, *larger_batches(size, own, leader)}
    if size == state.sizes[0]:
        batches = {p.batch_size for p in beside}
        rates = {p.learning_rate for p in beside}
        around = (s.point for s in own)
        kept |= {p for p in around if p.batch_size in batches and p.learning_rate in rates}
    return kept


def all_diverged(state: State, size: Size) -> bool:
    """Whether every point of a size that was tried diverged."""
    tried = [s for s in state.seen_of(size) if s.wanted > 0.0]
    return bool(tried) and all(s.run is not None and s.run.diverged for s in tried)


def _below_diverged(state: State, size: Size) -> Iterator[Decision]:
    """Where every point diverged, one a step below the smallest learning rate, at the middle of the batch sizes."""
    if not all_diverged(state, size):
        return
    own = state.seen_of(size)
    tried = sorted(s.point for s in own if s.wanted > 0.0)
    lowest = min(point.learning_rate for point in tried)
    row = [point for point in tried if point.learning_rate == lowest]
    for point in neighbours(size, own, row[len(row) // 2]):
        if point.learning_rate < lowest:
            yield replace(_begun(state, size, point), reason=Reason.BELOW_DIVERGED)


def missing_neighbours(
    state: State, size: Size, now: Race, *, strict: bool = False
) -> Iterator[Decision]:
    """Cells next to the leader on sides where nothing was tried, unless the optimum is on its other side.

    With `strict` they are wanted wherever the optimum may be.
    """
    yield from permitted(state, _unreached(state, size, now, strict=strict))


def axes_at_edge(state: State, size: Size) -> frozenset[str]:
    """The axes, fields of Point, on whose sides the leader lacks a neighbour that no addition is left for."""
    now = state.race_at(size)
    if now is None or state.additions_left:
        return frozenset()
    in_grid = [d for d in _unreached(state, size, now, strict=True) if not d.added]
    if in_grid:  # one of them may still lead, and have points on all sides
        return frozenset()
    added = [d.point for d in _unreached(state, size, now, strict=False) if d.added]
    return frozenset(
        axis
        for axis in ("learning_rate", "batch_size")
        if any(getattr(point, axis) != getattr(now.leader, axis) for point in added)
    )


def _unreached(state: State, size: Size, now: Race, *, strict: bool) -> Iterator[Decision]:
    """Missing neighbours, however many points may be added."""
    known = {s.point for s in state.seen_of(size) if s.wanted > 0.0 or s.closed}

    def is_missing(point: Point) -> bool:
        tried = any(
            _as_far(point, other, now.leader)
            and (not strict or _in_line(point, other, now.leader))
            for other in known
        )
        return not tried and (strict or not _is_inside(now, point))

    beside = neighbours(size, state.seen_of(size), now.leader)
    yield from (_begun(state, size, p) for p in beside if is_missing(p))


def beyond_outermost(
    state: State, size: Size, now: Race, *, axis: str, larger: bool
) -> Iterator[Decision]:
    """In the leader's row or column, the cell a step beyond the outermost that ran; `axis` is a field of Point.

    None if it was tried: what failed there is no reason to go still farther.
    """
    own = state.seen_of(size)
    tried = {s.point for s in own if s.wanted > 0.0}
    values = [getattr(s.point, axis) for s in own if s.tokens > 0.0]
    outermost = max(values) if larger else min(values)
    end = replace(now.leader, **{axis: outermost})
    for point in neighbours(size, own, end):
        value = getattr(point, axis)
        is_beyond = value > outermost if larger else value < outermost
        if is_beyond and point not in tried:
            yield _begun(state, size, point)


def missing_diagonal(state: State, size: Size, now: Race) -> Iterator[Decision]:
    """One cell that differs from the leader in both: in the grid before beyond it, and along the valley, where larger
    batches go with larger learning rates, before across it. None if all were tried."""
    own, leader = state.seen_of(size), now.leader
    tried, grid = {s.point for s in own if s.wanted > 0.0}, set(grid_points(size))
    beside = neighbours(size, own, leader)
    diagonal = {
        replace(leader, batch_size=one.batch_size, learning_rate=other.learning_rate)
        for one in beside
        for other in beside
        if one.batch_size != leader.batch_size and other.learning_rate != leader.learning_rate
    }

    def order(point: Point) -> tuple[bool, bool, Point]:
        larger = point.batch_size > leader.batch_size
        across = larger != (point.learning_rate > leader.learning_rate)
        return point not in grid, across, point

    if left := sorted(diagonal - tried, key=order):
        yield _begun(state, size, left[0])


def permitted(state: State, decisions: Iterable[Decision]) -> Iterator[Decision]:
    """These decisions, as long as they add no more points than may be added."""
    left = state.additions_left
    for decision in decisions:
        if decision.added and left == 0:
            continue
        left -= decision.added
        yield decision


def _begun(state: State, size: Size, point: Point) -> Decision:
    """To run a cell to the first rung, as one of the grid or an added one."""
    if point in grid_points(size):
        return state.run_to(point, RUNGS[0], Reason.BESIDE_LEADER)
    return state.run_to(point, RUNGS[0], Reason.BEYOND_EDGE, added=True)


def missing_replicates(state: State) -> list[Decision]:
    """Repeats, to the middle, of the point that leads the cheapest size: there they cost least, and the noise of
    larger models is no larger.

    Those that failed count as tried.
    """
    size = state.sizes[0]
    now = state.race_at(size)
    tried = {s.point.replicate for s in state.replicates}
    if now is None:
        return []
    missing = [n for n in range(1, state.options.replicates + 1) if n not in tried]
    return [
        state.run_to(replace(now.leader, replicate=n), RUNGS[1], Reason.REPLICATE, added=True)
        for n in missing
    ]


def _as_far(point: Point, other: Point, leader: Point) -> bool:
    """Whether `other` is at least as far from the leader as its neighbour `point`, on the same side."""
    at, there, here = (_along(p, point, leader) for p in (leader, other, point))
    return there >= here > at or there <= here < at


def _in_line(point: Point, other: Point, leader: Point) -> bool:
    """Whether `other` is in the row or column of leader and neighbour."""
    if point.batch_size == leader.batch_size:
        return other.batch_size == leader.batch_size
    return other.learning_rate == leader.learning_rate


def _along(p: Point, neighbour: Point, leader: Point) -> float:
    """The coordinate in which a neighbour differs from the leader."""
    return p.learning_rate if neighbour.batch_size == leader.batch_size else p.batch_size


def _is_inside(now: Race, point: Point) -> bool:
    """Whether the point opposite to a neighbour is so nearly as good that the optimum is on its side.

    A parabola of the usual curvature through it and the leader has its vertex more than a quarter of the way
    from the leader to it: k h^2 (1/2 - v) tokens are wasted there if the vertex is v steps h away.
    """
    for other, found in now.excesses.items():
        if _is_opposite(point, other, now.leader):
            step = distance(other, now.leader)
            most = found.steepness * USUAL_CURVATURE * step**2 * (0.5 - INSIDE)
            if found.mean < most:
                return True
    return False


def _is_opposite(point: Point, other: Point, leader: Point) -> bool:
    """Whether `other` is on the line through leader and neighbour, on the leader's other side."""
    on_line = (
        other.batch_size == leader.batch_size
        if point.batch_size == leader.batch_size
        else other.learning_rate == leader.learning_rate
    )
    at, there, here = (_along(p, point, leader) for p in (leader, other, point))
    return on_line and (there < at < here or here < at < there)


def _runs_on(state: State, size: Size, now: Race, left: Sequence[Seen]) -> Iterator[Decision]:
    """At the cheapest size the leader to its end and all that are left to the middle; at others to the middle the
    leader and who may well end below it."""
    cheapest = size == state.sizes[0]
    for s in left:
        if s.point == now.leader:
            share, reason = (1.0 if cheapest else RUNGS[1]), Reason.LEADER
        elif cheapest or _may_lead(now.excesses.get(s.point)):
            share, reason = RUNGS[1], Reason.SURVIVOR
        else:
            continue
        if s.tokens < REACHED * share * size.tokens:
            yield state.run_to(s.point, share, reason)


def _may_lead(found: Excess | None) -> bool:
    return found is not None and found.risk >= RIVAL
