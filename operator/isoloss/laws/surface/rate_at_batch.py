"""The best learning rate at a batch size that is given.

Nothing is assumed about how the loss depends on the batch size: every batch size of every (N, D) has a level of its own, and
within it the wasted ln D is h x^2 / 2 + x (p + n P_n + d P_d + y P_y) + c u^3 / 6, with x = ln LR, n = ln N, d = ln D,
y = ln B and u = x less its optimum. So a sweep with one batch size answers, too, and one whose best batch size lies beyond its
grid. What the runs show of c joins what is usual of it: c ~ N(0, USUAL_ASYMMETRY^2 h^2), seen with its own error and that of
the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isoloss.laws.arrays import Array, Indices
from isoloss.laws.bootstrap import DECIDE, DrawSource
from isoloss.laws.curves import RateAtBatch
from isoloss.laws.data.cells import LATE, make_cells
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.edges import MOSTLY_CONVEX
from isoloss.laws.least_squares import NO_COLUMN, Levelled
from isoloss.laws.model import FitOptions, Refusal, RefusalReason, Status
from isoloss.laws.results import Bend, RateAtBatchLaw
from isoloss.laws.sizes import refuse_alike_sizes
from isoloss.laws.surface.bend import OwnBends, possible_bend, possible_token_bend
from isoloss.laws.surface.form_error import FEWEST_TO_BEND
from isoloss.laws.surface.joint_fit import window
from isoloss.laws.surface.skew import FARTHEST, TURNS
from isoloss.usual import (
    RATE_EXPONENT_ERROR,
    SCATTER_FREEDOM,
    USUAL_ASYMMETRY,
    USUAL_RATE_EXPONENT,
    USUAL_SCATTER,
)

FEWEST_RATES = 3
"""Learning rates at one batch size that show a minimum, and runs of a cell."""
FEWEST_SIZES = 2
NARROW = 0.2
"""The window over a line: near its best rate a valley is a parabola."""
SPREAD = 0.05
"""Spread of ln N, ln D or ln B below which a slope over it is not fitted."""
FORM_ERROR = 1.25
"""Standard deviation of the cubic term that the walls of a valley show about the bottom's own, in usual ones. In the published
sweep, whose asymmetry is large, the mean regret falls the more the walls are believed (0.0016 nats not at all, 0.0013 wholly), and
the largest grows (0.0058 and 0.0073). Chosen there, after five other values: so that the largest stays below 0.006."""
SIZE, TOKENS, BATCH = range(3)
"""Columns of where a point is."""


@dataclass(frozen=True)
class RateAtBatchFit:
    """The public record and its draws."""

    law: RateAtBatchLaw
    draws: RateAtBatch | None = None
    shows_tokens: bool = True
    """False: what tokens change is taken as usual."""


@dataclass(frozen=True)
class _Points:
    """(points,) each."""

    x: Array
    where: Array
    """(points, 3): ln N, ln D and ln B."""
    z: Array
    """Wasted ln D."""
    weights: Array
    line: Indices
    """A (size, tokens, batch size)."""
    size: Indices
    run: Indices

    def tells_what(self, others: _Points) -> bool:
        """Whether these are of as many sizes as the others, and vary in the same of ln N, ln D and ln B."""
        varied = [_varied(points, points.where).tolist() for points in (self, others)]
        return bool(self.size.max() == others.size.max()) and varied[0] == varied[1]

    @property
    def lines(self) -> Levelled:
        """Least squares with a level for each line."""
        return Levelled(self.line, self.weights)


def fit_rate_at_batch(
    trajectories: Sequence[Trajectory], options: FitOptions, fitted: Status
) -> RateAtBatchFit:
    """The law from all lines of learning rates, or why there is none."""
    points = _lines(trajectories)
    if points is None:
        return _refused(
            RefusalReason.TOO_FEW_RUNS,
            f"At no batch size did {FEWEST_RATES} learning rates come to the same tokens: none of them can be best. Train "
            f"at least {FEWEST_RATES} at one batch size.",
            {"fewest_learning_rates": FEWEST_RATES},
        )
    sizes = len(np.unique(points.size))
    if sizes < FEWEST_SIZES:
        return _refused(
            RefusalReason.TOO_FEW_SIZES,
            "Only one size has a batch size with three learning rates. How the best learning rate depends on the "
            "size takes at least two: train three learning rates at one batch size of another size.",
            {"sizes": sizes},
        )
    alike = refuse_alike_sizes(t.params for t in trajectories)
    if alike is not None:
        return RateAtBatchFit(RateAtBatchLaw("refused", refusal=alike))
    return _fitted(points, options, fitted, trajectories)


def _lines(trajectories: Sequence[Trajectory], earliest: float = 0.0) -> _Points | None:
    """The points of every (size, tokens, batch size) with enough learning rates; None without any.

    Trajectories with a loss everywhere give those from the share `earliest` of their size's tokens on.
    """
    rows: list[tuple[float, ...]] = []
    lines = 0
    for cell in make_cells(trajectories, FEWEST_RATES, earliest):
        batches = np.array([trajectories[i].batch_size for i in cell.runs])
        for batch in np.unique(batches):
            at = np.flatnonzero(batches == batch)
            own = [trajectories[i] for i in cell.runs[at]]
            if len({t.learning_rate for t in own}) < FEWEST_RATES:
                continue
            excess = cell.waste[at] - cell.waste[at].min()
            rows += [
                (
                    np.log(t.learning_rate),
                    cell.log_params,
                    cell.log_tokens,
                    np.log(batch),
                    waste,
                    near,
                    lines,
                    int(index),
                )
                for t, waste, near, index in zip(
                    own, cell.waste[at], window(excess, NARROW), cell.runs[at], strict=True
                )
            ]
            lines += 1
    if not rows:
        return None
    table = np.array(rows, dtype=float)
    size = np.unique(table[:, 1], return_inverse=True)[1]
    line, run = table[:, 6].astype(np.intp), table[:, 7].astype(np.intp)
    return _Points(table[:, 0], table[:, 1:4], table[:, 4], table[:, 5], line, size, run)


def _fitted(
    points: _Points, options: FitOptions, fitted: Status, trajectories: Sequence[Trajectory] = ()
) -> RateAtBatchFit:
    """From these points, or from late ones of the trajectories if the best learning rate clearly bends over tokens
    (token_range.py)."""
    middle = float(np.average(points.x, weights=points.weights))
    centre = np.average(points.where, axis=0, weights=points.weights)
    x, where = points.x - middle, points.where - centre
    varied = _varied(points, where)
    valley = _valley(points, x, where[:, varied])
    if valley is None:
        return _not_convex(0.0)
    bends = _own_bends(points, x, valley)
    if bends.are_clear and trajectories:
        late = _lines(trajectories, LATE)
        of_late = _fitted(late, options, fitted) if late and late.tells_what(points) else None
        if of_late is not None and of_late.law.refusal is None:
            return of_late
    curvature, found = float(valley.estimate[0]), valley.scatter
    source = DrawSource(options.seed, 12, options.bootstrap_samples)
    draws, scales = valley.draws(source)
    curve = replace(_curve(draws, varied, middle, centre), deviation_scale=scales)
    log_params, log_tokens, _ = points.where.T
    token_bend = possible_token_bend(log_params, log_tokens, points.weights, bends)
    if TOKENS not in varied:
        curve = _with_usual_tokens(curve, where, points.weights, source)
        # The exponent is from elsewhere, and so is its error.
        token_bend = replace(token_bend, spread=np.zeros(1))
    convex = draws[:, 0] > 0.0
    if convex[DECIDE].mean() < MOSTLY_CONVEX:
        return _not_convex(float(convex[DECIDE].mean()))
    edge = _beyond_the_edge(points, curve.take(DECIDE))
    if edge is not None:
        return RateAtBatchFit(RateAtBatchLaw("refused", refusal=edge))
    batches = np.exp(points.where[:, 2])
    law = RateAtBatchLaw(
        fitted,
        curve=curve.first(),
        curvature=curvature,
        scatter=found.total,
        bend=_bend(points, found),
        token_bend=token_bend,
        smallest_batch=float(batches.min()),
        largest_batch=float(batches.max()),
        shows_batch=BATCH in varied,
    )
    kept = np.flatnonzero(convex)
    return RateAtBatchFit(law, curve.take(kept[kept >= DECIDE.stop]), TOKENS in varied)


@dataclass(frozen=True)
class _Valley:
    """The coefficients of the parabola, and what is known of the cubic term beside it."""

    plain: Array
    """(terms,) of the parabola alone."""
    cubic: float
    """Coefficient of u^3 / 6, u counted from the optimum, as the points show it; 0 if they show none."""
    pull: Array
    """(terms,) what a cubic coefficient of 1 adds to those of the parabola alone."""
    usual: float
    """Standard deviation of cubic coefficients in valleys of this curvature."""
    noise: Array
    """(terms + 1, terms + 1) of the plain coefficients and the cubic one."""
    freedom: float
    moved: Array
    """(terms + 1, sizes and lines)"""
    scatter: _Scatter
    shows_cubic: bool
    residuals: Array
    """(points,) what the fit leaves of the wasted ln D."""

    @property
    def estimate(self) -> Array:
        """(terms,)"""
        every = np.append(self.plain, self.cubic)
        return np.asarray(self._given_usual(every[None], np.zeros(1))[0])

    def draws(self, source: DrawSource) -> tuple[Array, Array]:
        """((draws, terms), (draws,) how much more than expected sizes and lines deviate in each)."""
        noise = source.scales(self.freedom)[:, None] * source.correlated(self.noise)
        scales = source.scales(self.scatter.freedom)
        moved = scales[:, None] * source.correlated(self.moved @ self.moved.T)
        every = np.append(self.plain, self.cubic) + noise + moved
        return self._given_usual(every, source.normal()), scales

    def _given_usual(self, every: Array, errors: Array) -> Array:
        """(draws, terms): what is usual of the cubic term is one more observation of it; with these errors.

        What the walls show is not the bottom's own, as no valley is a cubic.
        """
        form = FORM_ERROR * self.usual
        variance = float(self.noise[-1, -1] + self.moved[-1] @ self.moved[-1]) + form**2
        doubt = variance / (variance + self.usual**2) if self.shows_cubic else 1.0
        spread = np.hypot(doubt * self.usual, (1.0 - doubt) * form)
        cubic = (1.0 - doubt) * every[:, -1] + spread * errors
        return np.asarray(every[:, :-1] - cubic[:, None] * self.pull)


def _valley(points: _Points, x: Array, where: Array) -> _Valley | None:
    """Fitted over these slopes (points, k); None without a minimum.

    The cubic term counts from the optimum, so that the two are found in turn.
    """
    design = np.column_stack([0.5 * x**2, x, x[:, None] * where])
    shape = points.lines.solver(design)
    plain = shape @ points.z
    if plain[0] <= 0.0:
        return None
    estimate, found = plain, None
    for _ in range(TURNS):
        optimum = -(estimate[1] + where @ estimate[2:]) / estimate[0]
        u = np.clip(x - optimum, -FARTHEST, FARTHEST)
        found = _with_cubic(points, x, design, shape, u**3 / 6)
        estimate = found.estimate
        if estimate[0] <= 0.0:
            return None
    return found


def _with_cubic(points: _Points, x: Array, design: Array, shape: Array, cubic: Array) -> _Valley:
    """The parabola and a cubic term (points,), which shows in what the parabola cannot follow of it."""
    plain, pull = shape @ points.z, shape @ cubic
    own = points.lines.without_levels(cubic - design @ pull)
    information = float((points.weights * own**2).sum())
    shows = information > NO_COLUMN**2
    reader = points.weights * own / information if shows else np.zeros_like(own)
    coefficient = float(reader @ points.z)
    residuals = points.lines.without_levels(points.z - design @ plain) - own * coefficient
    readers = np.vstack([shape, reader])
    curvature = float(plain[0])
    scatter = _scatter(points, residuals, curvature, design.shape[1] - 2)
    noise, freedom = _noise(points, readers, residuals)
    moved = _moved(points, x, readers, curvature, scatter)
    usual = float(USUAL_ASYMMETRY[0]) * curvature
    return _Valley(
        plain, coefficient, pull, usual, noise, freedom, moved, scatter, shows, residuals
    )


def _varied(points: _Points, where: Array) -> Indices:
    """Which of ln N, ln D and ln B the runs tell a slope over: ln D and ln B must vary at a size."""
    sizes = np.unique(points.size)
    own = np.array([where[points.size == k].std(axis=0) for k in sizes]).mean(axis=0)
    spread = np.array([where[:, 0].std(), own[1], own[2]])
    return np.flatnonzero(spread > SPREAD)


def _curve(draws: Array, varied: Indices, middle: float, centre: Array) -> RateAtBatch:
    """The optimum of each draw; what was not varied has no slope."""
    optimum = -draws[:, 1:] / np.where(draws[:, :1] > 0.0, draws[:, :1], np.inf)
    slopes = np.zeros((len(draws), 3))
    slopes[:, varied] = optimum[:, 1:]
    return RateAtBatch(
        optimum[:, 0] + middle,
        *slopes.T,
        *(float(value) for value in centre),
    )


def _with_usual_tokens(
    curve: RateAtBatch, where: Array, weights: Array, source: DrawSource
) -> RateAtBatch:
    """With the usual exponent of tokens, its error included, where sizes were trained to a single count each.

    They show the learning rate along their own line of tokens over sizes, which stays as it is.
    """
    exponent = USUAL_RATE_EXPONENT + RATE_EXPONENT_ERROR * source.normal()
    n, d = where[:, SIZE], where[:, TOKENS]
    spread = float(weights @ n**2)
    along = float(weights @ (n * d)) / spread if spread > 0.0 else 0.0
    return replace(curve, of_tokens=exponent, of_params=curve.of_params - along * exponent)


@dataclass(frozen=True)
class _Scatter:
    """Standard deviations of the best ln LR about the law."""

    of_sizes: float
    of_lines: float
    """Scatter of a batch size at some tokens about its size."""
    freedom: float
    shifts: Array
    """(sizes,) by which each size's best ln LR is off the law."""

    @property
    def total(self) -> float:
        """Standard deviation for a line of a size that was not seen."""
        return float(np.hypot(self.of_sizes, self.of_lines))


def _scatter(points: _Points, residuals: Array, curvature: float, slopes: int) -> _Scatter:
    """As the residual slopes show it, with what is usual of sizes."""
    about = points.lines.without_levels(points.x)

    def shifts(of: Indices) -> tuple[Array, Array]:
        pull = np.bincount(of, points.weights * about * residuals)
        information = np.bincount(of, points.weights * about**2).astype(float)
        return np.asarray(-pull / (curvature * information)), information

    sizes, _ = shifts(points.size)
    lines, information = shifts(points.line)
    size_of = points.size[np.unique(points.line, return_index=True)[1]]
    # Two of the law's coefficients, at most, are of the sizes.
    freedom = float(max(len(sizes) - 2, 0))
    squares = float((sizes**2).sum()) if freedom else 0.0
    of_sizes = (squares + SCATTER_FREEDOM * USUAL_SCATTER**2) / (freedom + SCATTER_FREEDOM)
    means = np.bincount(size_of, information * lines) / np.bincount(size_of, information)
    spare = max(len(lines) - len(sizes) - slopes, 1)
    # A line whose optimum lies beyond its learning rates has next to no information, and a shift that says nothing.
    square = np.average((lines - means[size_of]) ** 2, weights=information)
    of_lines = float(square) * len(lines) / spare
    return _Scatter(
        float(np.sqrt(of_sizes)), float(np.sqrt(of_lines)), freedom + SCATTER_FREEDOM, sizes
    )


def _bend(points: _Points, found: _Scatter) -> Bend:
    """What the law over sizes may bend by, from the sizes' own shifts."""
    sizes = np.array([points.where[points.size == k, 0][0] for k in range(len(found.shifts))])
    shifts = found.shifts[:, None]
    return possible_bend(sizes, shifts, np.zeros_like(shifts), np.array([USUAL_SCATTER**2]))


def _own_bends(points: _Points, x: Array, valley: _Valley) -> OwnBends:
    """The coefficients of (ln D)^2 in the best ln LR that sizes show beside slopes of their own over ln D and ln B."""
    lines, tokens = points.lines, points.where[:, TOKENS]
    readers = []
    for size in np.unique(points.size):
        own = np.where(points.size == size, 1.0, 0.0)
        if len(np.unique(tokens[own > 0.0])) < FEWEST_TO_BEND:
            continue
        along = (tokens - float(np.average(tokens, weights=own))) * own
        batch = points.where[:, BATCH] * own
        design = np.stack([along**2, own, along, batch], axis=1) * x[:, None]
        readers.append(lines.solver(design)[0] / -float(valley.estimate[0]))
    if not readers:
        return OwnBends(np.zeros((0, 1)), np.zeros((0, 1)))
    solver = np.array(readers)
    noise, _ = _noise(points, solver, valley.residuals)
    return OwnBends((solver @ valley.residuals)[:, None], np.diag(noise)[:, None])


def _moved(points: _Points, x: Array, shape: Array, curvature: float, found: _Scatter) -> Array:
    """(coefficients, sizes and lines) what a standard deviation of each one's scatter does."""
    parts = [
        scale * curvature * np.stack([np.bincount(of, row * x) for row in shape])
        for scale, of in ((found.of_sizes, points.size), (found.of_lines, points.line))
    ]
    return np.concatenate(parts, axis=1)


def _noise(points: _Points, shape: Array, residuals: Array) -> tuple[Array, float]:
    """(covariance of the coefficients, degrees of freedom): points of one run err together."""
    runs = np.unique(points.run, return_inverse=True)[1]
    freedom = max(float(runs.max() + 1 - len(shape) - points.size.max() - 1), 2.0)
    spare = max(len(residuals) - len(shape) - int(points.line.max()) - 1, 1)
    per_run = np.stack([np.bincount(runs, row * residuals) for row in shape])
    return len(residuals) / spare * per_run @ per_run.T, freedom


def _beyond_the_edge(points: _Points, curve: RateAtBatch) -> Refusal | None:
    """Refuse if the best learning rate of most late lines is outside of what was tried there."""
    first = np.unique(points.line, return_index=True)[1]
    last = np.array(
        [points.where[points.size == k, 1].max() for k in range(points.size.max() + 1)]
    )
    late = points.where[first, 1] >= last[points.size[first]] + np.log(LATE) - 1e-6
    best = np.array([curve.at(*where)[0] for where in points.where[first]])
    lowest = np.full(len(first), np.inf)
    np.minimum.at(lowest, points.line, points.x)
    highest = np.full(len(first), -np.inf)
    np.maximum.at(highest, points.line, points.x)
    above, below = float((best > highest)[late].mean()), float((best < lowest)[late].mean())
    if max(above, below) <= 0.5:
        return None
    larger = above > below
    edge = float(np.exp(points.x.max() if larger else points.x.min()))
    direction = "larger" if larger else "smaller"
    return Refusal(
        RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE,
        f"At {max(above, below):.0%} of the batch sizes the best learning rate is beyond the largest or smallest one tried "
        f"there: add {direction} ones, beyond {edge:.3g}.",
        {"edge": edge, "direction": direction, "quantity": "learning_rate"},
    )


def _not_convex(share: float) -> RateAtBatchFit:
    return _refused(
        RefusalReason.SURFACE_NOT_CONVEX,
        "At a given batch size the losses have no minimum over the learning rate above the noise (convex in "
        f"{share:.0%} of the bootstrap). Add learning rates on both sides.",
        {"convex_share": share},
    )


def _refused(reason: RefusalReason, message: str, figures: dict[str, float]) -> RateAtBatchFit:
    return RateAtBatchFit(RateAtBatchLaw("refused", refusal=Refusal(reason, message, {**figures})))
