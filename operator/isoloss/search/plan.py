"""What is worth training: cost and expected regret together are to be least.

Everything that may be trained is taken as planned; what shows least for its FLOPs is dropped, one rung of a point after the other,
down to nothing. Where cost and expected regret together are least on that way, the plan is: what was dropped last is trained first.
Points that run count as done. Regret is turned into FLOPs by the share of tokens that it wastes (AIMED). The largest
size counts beside the target: what its optimum deviates from the laws by is not seen by a target beyond it, and mixtures deviate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from isoloss.design import Target
from isoloss.laws import Array
from isoloss.numbers import to_significant_digits
from isoloss.search.belief import Belief, Indices, independent, window
from isoloss.search.model import REACHED, RUNGS, Point, Seen, Size
from isoloss.usual import FEWEST_RUNS, USUAL_STEP

TARGET = 200.0
"""Times the largest point's compute, for which a search without a target is."""
AIMED = 0.2
"""Share of the target's compute that savings are reckoned at, each counted twice. At the target itself searches cost twice as much, and
what they lose less is worth a third of that (docs/evidence/search.md)."""
LARGEST = 2.0
"""How much the expected regret at the largest size is worth of that at the target. Half as large a target and twice this cost 0.29 of
the grids' FLOPs for 0.30, and lose 0.37 thousandths of a nat for 0.27 (docs/evidence/search.md)."""
REACH = 1.5 * math.log(USUAL_STEP)
"""ln units from the expected optimum up to which points beyond the grid may be added."""
LEAST_STEP = 0.6
"""ln units between lines that are added."""
OPEN_LEVEL = 10.0
"""Prior standard deviation of a level, ln D."""
USUAL_IN_CELL = 6
"""Runs of a size that are planned to a token count, or none, if it has as many: a quadratic has six coefficients. With three, those that
go on are the luckiest, and intervals hold 64% of optima for 78% where seeds differ by 0.004 nats."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Choice:
    """One rung of one point."""

    point: Point
    tokens: float
    """To train to."""
    added: bool
    """Whether it begins a point that is not of the grid."""
    flops: float
    """What it costs beyond the rung before."""
    saves: float
    """FLOPs of the target that it is expected to save."""


@dataclass(frozen=True)
class Plan:
    """What is worth training, and what is not, most valuable first."""

    worth: tuple[Choice, ...]
    rest: tuple[Choice, ...]


@dataclass(frozen=True)
class _Unit:
    """A point as it may be trained."""

    point: Point
    size: int
    have: int
    """Rungs that it has, or will have with what is running."""
    most: int
    added: bool


def default_target(sizes: Sequence[Size]) -> Target:
    """TARGET times the compute of the largest size's runs, at their tokens per parameter."""
    largest = max(sizes, key=lambda size: (size.point_flops, size.name))
    factor = math.sqrt(TARGET)
    return Target(factor * largest.params, factor * largest.tokens)


def plan(belief: Belief, seen: Mapping[Point, Seen], additions: int, target: Target) -> Plan:
    """For an answer at the target; `additions` are how many points may still be added to the grids."""
    factor = math.sqrt(AIMED)
    target = Target(factor * target.params, factor * target.tokens)
    units = list(_units(belief, seen, additions))
    rows = _Rows.of(belief, units)
    steps, best = _dropped(rows, _Worth.of(belief, target, rows.design.shape[1]))

    def choices(some: Sequence[_Step]) -> tuple[Choice, ...]:
        found = []
        for step in reversed(some):
            for at in step.rows:
                unit, rung = units[at // RUNGS], at % RUNGS
                size = belief.sizes[unit.size]
                tokens = size.rungs[rung] * size.tokens
                flops = float(rows.cost[at])
                saves = step.loss * flops / step.saves
                found.append(Choice(unit.point, tokens, unit.added, flops, saves))
        return tuple(found)

    return Plan(choices(steps[best:]), choices(steps[:best]))


# ------------------------------------------------------------------------------ what may be trained


def _units(belief: Belief, seen: Mapping[Point, Seen], additions: int) -> Iterator[_Unit]:
    for index, size in enumerate(belief.sizes):
        optimum = belief.optimum(np.array([index]), belief.log_tokens[[index]])[0]
        grid = set(size.points)
        own = {point for point in seen if point.size == size.name}
        diverged = [point for point in own if seen[point].diverged]
        beyond = set(_beyond(size, optimum)) if additions > 0 else set()
        for point in sorted(grid | own | beyond):
            known = seen.get(point, Seen(point))
            reached = known.tokens if known.closed else max(known.tokens, known.wanted)
            have = sum(reached >= REACHED * share * size.tokens for share in size.rungs)
            hopeless = any(
                p.learning_rate <= point.learning_rate and p.batch_size >= point.batch_size
                for p in diverged
            )
            most = have if known.closed or (hopeless and not have) else RUNGS
            yield _Unit(point, index, have, most, point not in grid and point not in own)


def _beyond(size: Size, optimum: Array) -> Iterator[Point]:
    """Cells about the optimum on the grid's lines and on further ones."""
    rates = _lines(size.learning_rates, float(optimum[0]), whole=False)
    batches = _lines(size.batch_sizes, float(optimum[1]), whole=True)
    largest = max(size.largest_batch_size or math.inf, *size.batch_sizes)
    for batch in batches:
        for rate in rates:
            away = np.abs(np.log([rate, batch]) - optimum).max()
            if away <= REACH and batch <= largest:
                yield Point(size.name, batch, rate)


def _lines(values: Sequence[float], at: float, *, whole: bool) -> list[float]:
    lines = sorted(values)
    steps = [math.log(b / a) for a, b in pairwise(lines)]
    step = math.exp(max(np.median(steps), LEAST_STEP)) if steps else USUAL_STEP
    while math.log(lines[-1]) < at + REACH:
        lines.append(lines[-1] * step)
    while math.log(lines[0]) > at - REACH and lines[0] > 1e-9:
        lines.insert(0, lines[0] / step)
    kept = set(values)
    return [v if v in kept else _rounded(v, whole=whole) for v in lines]


def _rounded(value: float, *, whole: bool) -> float:
    return float(max(round(value), 1)) if whole else to_significant_digits(value, 4)


# ------------------------------------------------------------------------------ what it would show


@dataclass(frozen=True)
class _Rows:
    """Every rung of every point, `RUNGS` a point in the order of its tokens."""

    design: Array
    """(rows, unknowns and levels)"""
    variances: Array
    cell: Indices
    """(rows,) size and token count."""
    done: Flags
    open: Flags
    """Which may be trained."""
    cost: Array
    """(rows,) FLOPs beyond the rung before."""
    prior: Array
    """Precision of unknowns and levels."""
    fewest: Indices
    """(cells,) runs without which a cell is not read."""

    @staticmethod
    def of(belief: Belief, units: Sequence[_Unit]) -> _Rows:
        count = len(units)
        size = np.repeat([unit.size for unit in units], RUNGS)
        rung = np.tile(np.arange(RUNGS), count)
        point = np.repeat(np.arange(count), RUNGS)
        x = np.log([[unit.point.learning_rate, unit.point.batch_size] for unit in units])[point]
        shares = np.array([each.rungs for each in belief.sizes])
        log_tokens = belief.log_tokens[size] + np.log(shares)[size, rung]
        cell = size * RUNGS + rung
        found = belief.rows(x, size, log_tokens)
        levels = np.eye(RUNGS * len(belief.sizes))[cell]
        slope = np.full(len(x), belief.slope)
        design = np.concatenate([found.design, levels], axis=1)
        design, variances = independent(design, point, log_tokens, slope)
        width = found.design.shape[1]
        prior = np.diag(np.full(design.shape[1], OPEN_LEVEL**-2.0))
        prior[:width, :width] = belief.precision()
        done = rung < np.array([unit.have for unit in units])[point]
        may_run = ~done & (rung < np.array([unit.most for unit in units])[point])
        possible = np.bincount(cell[done | may_run], minlength=RUNGS * len(belief.sizes))
        flops = np.array([each.point_flops for each in belief.sizes])[size]
        rows = _Rows(
            design=design,
            variances=variances / window(found.known),
            cell=cell,
            done=done,
            open=may_run,
            cost=np.diff(shares, prepend=0.0, axis=1)[size, rung] * flops,
            prior=prior,
            fewest=np.clip(possible, FEWEST_RUNS, USUAL_IN_CELL),
        )
        # Points are as far away as the optimum is uncertain, besides.
        covariance = rows.covariance(rows.read(done))[:width, :width]
        moves = belief.moves(size, log_tokens)
        between = np.einsum("mkp,pq,mlq->mkl", moves, covariance, moves)
        excess = found.known + 0.5 * np.einsum("kl,mkl->m", belief.hessian, between)
        return replace(rows, variances=variances / window(excess))

    def read(self, rows: Flags) -> Flags:
        """Those of these rows that a fit reads: of cells with enough runs."""
        return np.asarray(rows & (self.counts(rows) >= self.fewest)[self.cell])

    def counts(self, rows: Flags) -> Indices:
        """(cells,) how many of these rows each has."""
        return np.bincount(self.cell[rows], minlength=len(self.fewest))

    def covariance(self, rows: Flags) -> Array:
        """Of unknowns and levels after these rows."""
        design = self.design[rows]
        shown = design.T @ (design / self.variances[rows, None])
        return np.asarray(np.linalg.inv(self.prior + shown), dtype=float)

    def without(self, covariance: Array, row: int) -> tuple[Array, float]:
        """(direction, variance): a covariance rises by the square of the one over the other if a row is dropped."""
        direction = covariance @ self.design[row]
        left = float(self.variances[row] - direction @ self.design[row])
        return direction, max(left, 1e-9 * float(self.variances[row]))


@dataclass(frozen=True)
class _Worth:
    """FLOPs of the target that an uncertainty is worth."""

    asked: Array
    """(4, unknowns and levels), of the target and the largest size: squares of it times an error, summed, are FLOPs."""

    @staticmethod
    def of(belief: Belief, target: Target, width: int) -> _Worth:
        moves = belief.moves_at(math.log(target.params), math.log(target.tokens))
        # Half of tr(H S) of ln D is wasted; see AIMED.
        root = np.linalg.cholesky(target.flops * belief.hessian)
        last = len(belief.sizes) - 1
        own = belief.moves(np.array([last]), belief.log_tokens[[last]])[0]
        asked = np.zeros((4, width))
        asked[:2, : moves.shape[1]] = root.T @ moves
        asked[2:, : own.shape[1]] = math.sqrt(LARGEST) * root.T @ own
        return _Worth(asked)

    def regret(self, covariance: Array) -> float:
        """FLOPs."""
        return float(np.einsum("kp,pq,kq->", self.asked, covariance, self.asked))


@dataclass(frozen=True)
class _Step:
    """Rows that may be dropped together."""

    rows: Indices
    """That are planned."""
    silent: Indices
    """That show nothing any more, those included."""
    loss: float
    saves: float
    """FLOPs, both."""


def _dropped(rows: _Rows, worth: _Worth) -> tuple[list[_Step], int]:
    """What was dropped by each step, and after how many of them cost and regret together were least."""
    read = rows.read(rows.done | rows.open)
    planned, kept = rows.open & read, rows.done & read
    covariance = rows.covariance(planned | kept)
    total = float(rows.cost[planned].sum()) + worth.regret(covariance)
    steps: list[_Step] = []
    best, least = 0, total
    while planned.any():
        options = [*_single(rows, worth, covariance, planned, kept)]
        options += _whole_cells(rows, worth, covariance, planned, kept)
        step = min(options, key=lambda option: (option.loss / option.saves, -option.saves))
        for row in step.silent:
            direction, left = rows.without(covariance, int(row))
            covariance = covariance + np.outer(direction, direction) / left
        planned[step.rows] = False
        kept[step.silent] = False
        total += step.loss - step.saves
        steps.append(step)
        if total < least:
            best, least = len(steps), total
    return steps, best


def _last(planned: Flags) -> Flags:
    """Rungs above which none of the same point is planned."""
    by_point = planned.reshape(-1, RUNGS)
    above = np.zeros_like(by_point)
    above[:, :-1] = by_point[:, 1:]
    return np.asarray((by_point & ~above).ravel())


def _single(
    rows: _Rows, worth: _Worth, covariance: Array, planned: Flags, kept: Flags
) -> Iterator[_Step]:
    """The last rung of one point whose cell is read without it, too: the one that loses least for its cost."""
    have = rows.counts(kept)
    enough = (have >= rows.fewest) | (have + rows.counts(planned) > rows.fewest)
    at = np.flatnonzero(_last(planned) & enough[rows.cell])
    if not len(at):
        return
    design = rows.design[at]
    directions = design @ covariance
    left = rows.variances[at] - (directions * design).sum(axis=1)
    left = np.maximum(left, 1e-9 * rows.variances[at])
    losses = ((directions @ worth.asked.T) ** 2).sum(axis=1) / left
    least = np.lexsort((-rows.cost[at], losses / rows.cost[at]))[0]
    chosen = at[[least]]
    yield _Step(chosen, chosen, float(losses[least]), float(rows.cost[chosen[0]]))


def _whole_cells(
    rows: _Rows, worth: _Worth, covariance: Array, planned: Flags, kept: Flags
) -> Iterator[_Step]:
    """Cells that are read with everything that is planned of them alone."""
    have, more, last = rows.counts(kept), rows.counts(planned), _last(planned)
    single = (have < rows.fewest) & (more > 0) & (have + more <= rows.fewest)
    for cell in np.flatnonzero(single):
        mine = np.flatnonzero(planned & (rows.cell == cell))
        if not last[mine].all():
            continue
        silent = np.flatnonzero((planned | kept) & (rows.cell == cell))
        after, loss = covariance, 0.0
        for row in silent:
            direction, left = rows.without(after, int(row))
            loss += float(((worth.asked @ direction) ** 2).sum()) / left
            after = after + np.outer(direction, direction) / left
        yield _Step(mine, silent, loss, float(rows.cost[mine].sum()))
