"""The best learning rate at a batch size that is given.

Nothing is assumed about how the loss depends on the batch size: every batch size of every (N, D) has a level of its own, and
within it the wasted ln D is h x^2 / 2 + x (p + n P_n + d P_d + y P_y + y^2 P_yy + y d P_yd) + c u^3 / 6, with x = ln LR, n = ln N,
d = ln D, y = ln B and u = x less its optimum. So a sweep with one batch size answers, too, and one whose best batch size lies beyond its
grid. What the runs show of c joins what is usual of it: c ~ N(0, USUAL_ASYMMETRY^2 h^2), seen with its own error and that of
the form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from isoloss import usual
from isoloss.laws.arrays import Array, Indices
from isoloss.laws.curves import RateAtBatch
from isoloss.laws.data.cells import LATE, Cell, make_cells
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.edges import BELIEVED
from isoloss.laws.least_squares import Levelled
from isoloss.laws.model import Refusal, RefusalReason, Status
from isoloss.laws.quadratic import FARTHEST_WASTE, window
from isoloss.laws.refusals import refuse_alike_sizes
from isoloss.laws.results import LawError, RateAtBatchLaw
from isoloss.laws.surface.joint_fit import usual_end
from isoloss.laws.surface.noise import Noise
from isoloss.laws.surface.random_effects import LinearFit, Usual, posterior
from isoloss.laws.surface.skew import Cubic, Valley, fit_valley
from isoloss.laws.surface.uncertainty import CLEAR, have_own_runs

NEAR = 0.06
"""ln D wasted against the best of a line at which a point counts half: near it a valley is a parabola."""
FORM_ERROR = 1.25
"""Standard deviation of the cubic term that the walls of a valley show about the bottom's own, in usual ones. In the published
sweep, whose asymmetry is large, the mean regret falls the more the walls are believed (0.0016 nats not at all, 0.0013 wholly), and
the largest grows (0.0058 and 0.0073). Chosen there, after five other values: so that the largest stays below 0.006."""
SIZE, TOKENS, BATCH, BATCH_SQUARED, BATCH_AND_TOKENS = range(5)
"""Columns of where a point is, from the centre."""
UNSHOWN = 1e3
"""Variance of a term that no runs show."""


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
    trajectories: Sequence[Trajectory], cells: Sequence[Cell], fitted: Status
) -> RateAtBatchLaw:
    """The law from all lines of learning rates in these cells, or why there is none."""
    points = _lines(trajectories, cells)
    if points is None:
        return _refused(
            RefusalReason.TOO_FEW_RUNS,
            f"At no batch size did {usual.FEWEST_RUNS} learning rates reach the same tokens, so none can be called the best. Train "
            f"at least {usual.FEWEST_RUNS} at one batch size.",
            {"fewest_learning_rates": usual.FEWEST_RUNS},
        )
    alike = refuse_alike_sizes(t.params for t in trajectories)
    if alike is not None:
        return RateAtBatchLaw("refused", refusal=alike)
    return _fitted(points, fitted, lambda: _lines(trajectories, make_cells(trajectories, LATE)))


def _lines(trajectories: Sequence[Trajectory], cells: Sequence[Cell]) -> _Points | None:
    """The points of every (size, tokens, batch size) with enough learning rates; None without any."""
    found: list[Array] = []
    for cell in cells:
        batches = np.array([trajectories[i].batch_size for i in cell.runs])
        for batch in np.unique(batches):
            at = np.flatnonzero(batches == batch)
            own = [trajectories[i] for i in cell.runs[at]]
            if len({t.learning_rate for t in own}) < usual.FEWEST_RUNS:
                continue
            waste, rates = cell.waste[at], np.log([t.learning_rate for t in own])
            where = np.full((len(at), 3), [cell.log_params, cell.log_tokens, np.log(batch)])
            near, line = window(waste - waste.min(), NEAR), np.full(len(at), len(found))
            found.append(np.column_stack([rates, where, waste, near, line, cell.runs[at]]))
    if not found:
        return None
    table = np.concatenate(found)
    size = np.unique(table[:, 1], return_inverse=True)[1]
    line, run = table[:, 6].astype(np.intp), table[:, 7].astype(np.intp)
    return _Points(table[:, 0], table[:, 1:4], table[:, 4], table[:, 5], line, size, run)


def _fitted(
    points: _Points, fitted: Status, late: Callable[[], _Points | None] | None
) -> RateAtBatchLaw:
    """From these points, or from `late` ones if the best learning rate clearly bends over tokens (token_range.py)."""
    middle = float(np.average(points.x, weights=points.weights))
    centre = np.average(points.where, axis=0, weights=points.weights)
    x, where = points.x - middle, points.where - centre
    y = where[:, BATCH]
    where = np.column_stack([where, y**2, y * where[:, TOKENS]])
    varied = _varied(points, where)
    found = _valley(points, x, where[:, varied])
    if found.coefficients[0] <= 0.0:
        return _not_convex(0.0)
    linear = _linear(points, x, where, varied, found)
    known = posterior(linear)
    token_curvature = len(linear.to_law) + 1
    if (
        late is not None
        and known.mean[token_curvature] ** 2
        > CLEAR**2 * known.covariance[token_curvature, token_curvature]
    ):
        later = late()
        of_late = _fitted(later, fitted, None) if later and later.tells_what(points) else None
        if of_late is not None and of_late.refusal is None:
            return of_late
    curvature = float(found.coefficients[0])
    law = np.zeros(len(linear.to_law))
    law[[0, *(1 + varied)]] = -found.coefficients[1:] / curvature
    moments = known.moments.copy()
    # What the walls show is not the bottom's own, as no valley is a cubic.
    moved = linear.to_law @ (linear.solver @ found.cubic.columns)
    moved = FORM_ERROR * (moved @ found.share * np.sqrt(found.cubic.variances))[:, 0]
    moments[: len(moved), : len(moved)] += np.outer(moved, moved)
    law, moments, kept = _with_usual(law, moments, where, varied, points.weights)
    error = float(np.sqrt(moments.diagonal()[1 : len(law)].max()))
    if error**2 > UNSHOWN:
        return _refused(
            RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE,
            f"How the best learning rate at a batch size moves with size and tokens is open: its exponent is known to {error:.3g} "
            "at best. Train the same learning rates to the same tokens at every size.",
            {"exponent_error": error},
        )
    curve = RateAtBatch(*(float(term) for term in law), *(float(value) for value in centre))
    curve = replace(curve, constant=float(law[0]) + middle)
    steepness = float(np.sqrt(linear.noise.covariance(linear.solver[:1])[0, 0]))
    share = NormalDist().cdf(curvature / steepness) if steepness > 0.0 else 1.0
    if share < BELIEVED:
        return _not_convex(share)
    edge = _beyond_the_edge(points, curve)
    if edge is not None:
        return RateAtBatchLaw("refused", refusal=edge)
    batches, along_runs = np.exp(points.where[:, BATCH]), 0.0 if linear.own_runs else 1.0
    end = usual_end(linear.log_params, linear.log_tokens)
    return RateAtBatchLaw(
        fitted,
        curve=curve,
        curvature=curvature,
        error=LawError(
            moments=moments,
            noise=kept @ known.noise @ kept.T,
            scatter=known.scale**2 * linear.usual.scatter,
            exponents=along_runs * linear.usual.exponents,
            token_curvatures=along_runs * linear.usual.token_curvatures,
            log_params_centre=float(centre[SIZE]),
            log_tokens_centre=float(centre[TOKENS]),
            end=np.array(end),
        ),
        smallest_batch=float(batches.min()),
        largest_batch=float(batches.max()),
        shows_batch=BATCH in varied,
        shows_tokens=TOKENS in varied,
        shows_params=SIZE in varied,
    )


def _valley(points: _Points, x: Array, where: Array) -> Valley:
    """Fitted over these slopes (points, k), with a cubic term that counts from the optimum."""
    design = np.column_stack([0.5 * x**2, x, x[:, None] * where])

    def cubic_at(coefficients: Array) -> Cubic:
        curvature, slope, *others = coefficients
        if curvature <= 0.0:
            return Cubic(np.zeros((len(x), 0)), np.zeros(0))
        optimum = -(slope + where @ np.array(others)) / curvature
        cubic = np.clip(x - optimum, -usual.FARTHEST_CUBIC, usual.FARTHEST_CUBIC)[:, None] ** 3 / 6
        return Cubic(cubic, (usual.USUAL_ASYMMETRY[:1] * curvature) ** 2)

    taken = design.shape[1] + int(points.size.max()) + 1
    return fit_valley(design, points.lines, points.z, cubic_at, points.run, taken, FORM_ERROR)


def _linear(points: _Points, x: Array, where: Array, varied: Indices, found: Valley) -> LinearFit:
    """The fit as random effects see it."""
    lines, design = points.lines, found.design
    curvature, slopes = float(found.coefficients[0]), found.coefficients[1:]
    # As if no cubic term were believed: with the belief 71% of the published sweep's single lines are held, so 77%.
    solver = lines.solver(design)
    residuals = lines.without_levels(points.z - design @ (solver @ points.z))
    to_law = np.zeros((1 + where.shape[1], len(solver)))
    rows = np.array([0, *(1 + varied)])
    to_law[rows, np.arange(1, len(solver))] = -1.0 / curvature
    to_law[rows, 0] = slopes / curvature**2
    n, d = where[:, SIZE], where[:, TOKENS]
    start, slope = usual_end(n, d)
    return LinearFit(
        solver=solver,
        design=design,
        levels=lines,
        residuals=residuals,
        to_law=to_law,
        shifts=-curvature * x[:, None],
        log_params=n,
        log_tokens=d,
        past_end=d - start - slope * n,
        size=points.size,
        own_runs=have_own_runs(points.run),
        unseen=found.cubic.columns,
        unseen_variance=found.cubic.variances,
        noise=Noise.of_residuals(residuals, lines, points.run, found.unknowns, found.taken),
        usual=Usual(
            np.array([[usual.USUAL_SCATTER**2]]),
            usual.EXPONENT_SCATTER[:1],
            np.full(1, usual.TOKEN_CURVATURE_SCATTER),
            usual.USUAL_SIZE_CURVATURE,
            usual.USUAL_TOKEN_CURVATURE,
        ),
    )


def _varied(points: _Points, where: Array) -> Indices:
    """Which of these the runs tell a slope over: ln D and ln B must vary at a size."""
    sizes = np.unique(points.size)
    own = np.array([where[points.size == k].std(axis=0) for k in sizes]).mean(axis=0)
    tokens, batch = own[TOKENS] > usual.USUAL_SCATTER, own[BATCH] > usual.USUAL_SCATTER
    bends = len(np.unique(np.round(where[:, BATCH], 6))) >= usual.FEWEST_RUNS
    shown = [
        where[:, SIZE].std() > usual.USUAL_SCATTER,
        tokens,
        batch,
        batch and bends,
        batch and tokens,
    ]
    return np.flatnonzero(shown)


def _with_usual(
    law: Array, moments: Array, where: Array, varied: Indices, weights: Array
) -> tuple[Array, Array, Array]:
    """With what is usual of (ln B)^2 and ln B ln D, and of tokens where sizes were trained to a single count each, as more observations;
    and (terms, terms) what these keep of the law's errors.

    Sizes of one count each show the learning rate along their own line of tokens over sizes, which stays as it is.
    """
    n, d = where[:, SIZE], where[:, TOKENS]
    spread = float(weights @ n**2)
    errors = np.full(len(law), usual.USUAL_BATCH_CURVATURE)
    errors[1 + TOKENS] = usual.RATE_EXPONENT_ERROR
    unshown = [term for term in (TOKENS, BATCH_SQUARED, BATCH_AND_TOKENS) if term not in varied]
    moments, every = moments.copy(), np.eye(len(moments))
    for term in unshown:
        free = every[1 + term].copy()
        free[1 + SIZE] = -float(weights @ (n * d)) / spread if term == TOKENS and spread else 0.0
        moments += UNSHOWN * np.outer(free, free)
    at = sorted({*unshown, BATCH_SQUARED, BATCH_AND_TOKENS})
    rows = 1 + np.array(at)
    gain = moments[:, rows] @ np.linalg.inv(
        moments[np.ix_(rows, rows)] + np.diag(errors[rows] ** 2)
    )
    every[:, rows] -= gain
    terms, usually = slice(len(law)), gain * errors[rows]
    found = law - gain[terms] @ law[rows]
    values, vectors = np.linalg.eigh(every @ moments @ every.T + usually @ usually.T)
    # Rounding errors of what runs nearly leave open may be as large as what is left of it.
    return found, (vectors * np.maximum(values, 0.0)) @ vectors.T, every[terms, terms]


def _beyond_the_edge(points: _Points, curve: RateAtBatch) -> Refusal | None:
    """Refuse if the best learning rate of most late lines is outside of what was tried there."""
    first = np.unique(points.line, return_index=True)[1]
    last = np.array(
        [points.where[points.size == k, 1].max() for k in range(points.size.max() + 1)]
    )
    late = points.where[first, 1] >= last[points.size[first]] + np.log(LATE) - 1e-6
    best = np.array([float(curve.at(*where)) for where in points.where[first]])
    lowest = np.full(len(first), np.inf)
    np.minimum.at(lowest, points.line, points.x)
    highest = np.full(len(first), -np.inf)
    np.maximum.at(highest, points.line, points.x)
    least = np.full(len(first), np.inf)
    np.minimum.at(least, points.line, points.z)
    near = points.z - least[points.line] < FARTHEST_WASTE * NEAR
    # Where the lowest or highest of a line alone counts, the line shows a wall, and no valley.
    alone = near & (np.bincount(points.line, near)[points.line] < 2)
    at, x = points.line[alone], points.x[alone]
    best[at] = np.where(x == highest[at], np.inf, np.where(x == lowest[at], -np.inf, best[at]))
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


def _not_convex(share: float) -> RateAtBatchLaw:
    return _refused(
        RefusalReason.SURFACE_NOT_CONVEX,
        "At a given batch size the losses have no minimum over the learning rate above the noise (convex in "
        f"{share:.0%} of the bootstrap). Add learning rates on both sides.",
        {"convex_share": share},
    )


def _refused(reason: RefusalReason, message: str, figures: dict[str, float]) -> RateAtBatchLaw:
    return RateAtBatchLaw("refused", refusal=Refusal(reason, message, {**figures}))
