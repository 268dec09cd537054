"""One convex surface of loss over (LR, B) for every (N, D), fitted at once.

Within a cell (one N at one D) the wasted ln D is c + x'Hx/2 + x'(p + n P_n + d P_d) with x = (ln LR, ln B),
n = ln N, d = ln D: linear in its coefficients, with a free level c per cell. Cells whose own optimum
is outside the grid still show the slope there, and every cell shares the curvature H.
The optimum is a log-linear law of N and D. skew.py says how far the valley is no parabola.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from isoloss.formatting import counted
from isoloss.laws.arrays import ROUNDING, Array, Indices
from isoloss.laws.bootstrap import replicate_noise
from isoloss.laws.data.cells import Cell
from isoloss.laws.data.trajectories import Trajectory, has_few_runs
from isoloss.laws.least_squares import Levelled, without
from isoloss.laws.model import Refusal, RefusalReason
from isoloss.laws.quadratic import NEAR, window
from isoloss.laws.refusals import refuse_alike_sizes
from isoloss.laws.surface.identified import refuse_unidentified
from isoloss.laws.surface.skew import Points, Valley, cubic_at, fit_valley, quadratic
from isoloss.laws.surface.terms import PER_QUANTITY, Centre, Shape
from isoloss.usual import FEWEST_SIZES, USUAL_SCATTER


@dataclass(frozen=True)
class SurfaceFit:
    """The linear problem solved, and its map for the bootstrap."""

    centre: Centre
    valley: Valley
    runs: Indices
    """(points,) trajectory behind each point."""
    weights: Array
    scale: Array
    """(points,) token slope of the point's cell."""
    positions: Array
    """(points, 2): ln LR and ln B, centred."""
    cell: Indices
    """(points,)"""
    sizes: tuple[float, ...]
    """ln N per cell."""
    log_tokens: Array
    """(points,) ln D."""
    replicate_noise: tuple[float, float]
    """(sum of squares of ln L, its degrees of freedom) that replicates show for a run."""
    end: tuple[float, float]
    """(intercept, slope) of ln D at the end of a size's runs over ln N, both centred."""
    past_end: Array
    """(points,) ln D less that end."""
    levels: Levelled

    @property
    def hessian(self) -> Array:
        """(2, 2) of ln D over (ln LR, ln B)."""
        xx, xy, yy = self.valley.coefficients[Shape.XX : Shape.X]
        return np.array([[xx, xy], [xy, yy]])

    @property
    def is_convex(self) -> bool:
        """Whether there is an optimum at all."""
        return bool(np.linalg.eigvalsh(self.hessian)[0] > ROUNDING)


def fit_surface(trajectories: Sequence[Trajectory], cells: Sequence[Cell]) -> SurfaceFit | Refusal:
    """Weighted least squares over all cells, or why there is none."""
    refusal = _refuse_cells(trajectories, cells)
    if refusal is not None:
        return refusal
    cell, runs = _members(cells)
    stack = _stack(trajectories, cells, cell, runs)
    wasted = stack[4]
    best = np.array([np.min(wasted[cell == c]) for c in range(len(cells))])
    found: list[SurfaceFit | Refusal] = []
    for near in NEAR:
        weights = window(wasted - best[cell], near)
        fit = _fit(trajectories, cells, cell, runs, stack, weights)
        if isinstance(fit, SurfaceFit) and fit.is_convex:
            return fit
        found.append(fit)
    # What the widest says is of all runs.
    return found[-1]


def _fit(
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
    cell: Indices,
    runs: Indices,
    stack: tuple[Array, ...],
    weights: Array,
) -> SurfaceFit | Refusal:
    """Through points of these weights (points,)."""
    x, y, n, d, z, scale = stack
    centre = Centre(*(float(np.average(v, weights=weights)) for v in (x, y, n, d)))
    points = Points(
        x - centre.log_rate, y - centre.log_batch, n - centre.log_params, d - centre.log_tokens
    )
    levelled = Levelled(cell, weights)
    refusal = _refuse_curvature(points, levelled, trajectories, cells)
    if refusal is not None:
        return refusal
    # Nine coefficients and a level per size are fitted to the errors that whole runs share.
    taken = len(Shape) + len({c.log_params for c in cells})
    valley = fit_valley(quadratic(points), levelled, z, partial(cubic_at, points), runs, taken)
    return SurfaceFit(
        centre=centre,
        valley=valley,
        runs=runs,
        weights=weights,
        scale=scale,
        positions=np.stack([points.x, points.y], axis=1),
        cell=cell,
        sizes=tuple(c.log_params for c in cells),
        log_tokens=d,
        replicate_noise=replicate_noise(trajectories),
        end=(end := usual_end(points.n, points.d)),
        past_end=points.d - end[0] - end[1] * points.n,
        levels=levelled,
    )


def _refuse_curvature(
    points: Points,
    levelled: Levelled,
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
) -> Refusal | None:
    """A direction of curvature that was not tried."""
    root = np.sqrt(levelled.weights)[:, None]
    curvature = quadratic(points)[:, : Shape.X]
    slopes = np.stack([points.x, points.y, points.d * points.x, points.d * points.y], axis=1)
    inside, slopes = (levelled.without_levels(each) * root for each in (curvature, slopes))
    left = np.concatenate([inside, slopes[:, 2:]], axis=1)
    # Every size has slopes of its own here: how sizes deviate from their trend is no sign of a curvature.
    for size in np.unique(points.n):
        at = points.n == size
        left[at] = without(slopes[at, :2], left[at])
    over_tokens = left[:, 3:]
    # Sizes of one token count each leave rounding errors of it.
    over_tokens[:, (over_tokens**2).sum(0) <= ROUNDING**2 * (slopes[:, 2:] ** 2).sum(0)] = 0.0
    left = without(over_tokens, left[:, :3])
    return refuse_unidentified(curvature * root, inside, left, trajectories, cells)


def _refuse_cells(trajectories: Sequence[Trajectory], cells: Sequence[Cell]) -> Refusal | None:
    """Too few cells, or cells that do not separate size from tokens."""
    points = sum(len(c.runs) for c in cells)
    sizes = len({c.log_params for c in cells})
    if points < len(Shape) + len(cells) + 1 or len(cells) < PER_QUANTITY:
        return Refusal(
            RefusalReason.TOO_FEW_RUNS,
            f"Too few points for a joint surface: {points} in {counted(len(cells), 'pair')} of a size and a token count; at least "
            f"{len(Shape) + len(cells) + 1} in {PER_QUANTITY} pairs are needed. {_advice(trajectories, cells)}",
            {"points": points, "cells": len(cells)},
        )
    if sizes < FEWEST_SIZES:
        return Refusal(
            RefusalReason.TOO_FEW_SIZES,
            "There is only one model size. A joint surface needs at least two: train another size.",
            {"sizes": sizes},
        )
    alike = refuse_alike_sizes(np.exp(c.log_params) for c in cells)
    if alike is not None:
        return alike
    n_and_d = np.array([[c.log_params, c.log_tokens] for c in cells])
    spread = np.linalg.svd(n_and_d - n_and_d.mean(axis=0), compute_uv=False)[-1]
    if spread / np.sqrt(len(cells)) < USUAL_SCATTER:
        return Refusal(
            RefusalReason.TOO_FEW_EVALUATIONS,
            f"{_one_line(n_and_d)} The effects of size and of tokens cannot be separated. Evaluate runs earlier as well, or train "
            "at least one size for more tokens.",
            {"cells": len(cells), "spread": float(spread)},
        )
    return None


def _advice(trajectories: Sequence[Trajectory], cells: Sequence[Cell]) -> str:
    few = has_few_runs(trajectories)
    if few is not None:
        return few
    if len(cells) < PER_QUANTITY:
        return "Evaluate the runs at more token counts, or train another size."
    return "Train more learning rates and batch sizes."


def _one_line(n_and_d: Array) -> str:
    """How the tokens of cells go with their sizes, if with anything."""
    log_params, log_tokens = n_and_d.T
    exponent = float(np.polyfit(log_params, log_tokens, 1)[0])
    return f"All losses are at tokens that grow with the size as N^{exponent:.2f}."


def _members(cells: Sequence[Cell]) -> tuple[Indices, Indices]:
    """(points,) cell and trajectory of each point."""
    cell = np.concatenate([np.full(len(c.runs), i, dtype=np.intp) for i, c in enumerate(cells)])
    return cell, np.concatenate([c.runs for c in cells])


def _stack(
    trajectories: Sequence[Trajectory], cells: Sequence[Cell], cell: Indices, runs: Indices
) -> tuple[Array, ...]:
    x = np.log([trajectories[i].learning_rate for i in runs])
    y = np.log([trajectories[i].batch_size for i in runs])
    scale = np.array([c.slope for c in cells])[cell]
    z = np.concatenate([c.waste for c in cells])
    n = np.array([c.log_params for c in cells])[cell]
    d = np.array([c.log_tokens for c in cells])[cell]
    return x, y, n, d, z, scale


def usual_end(log_params: Array, log_tokens: Array) -> tuple[float, float]:
    """(intercept, slope) of ln D at the end of a size's runs over ln N, from those of points (n,).

    The slope is between none and that of equal tokens per parameter.
    """
    sizes = np.unique(log_params)
    ends = np.array([log_tokens[log_params == size].max() for size in sizes])
    slope = float(np.polyfit(sizes, ends, 1)[0]) if len(sizes) > 1 else 0.0
    slope = float(np.clip(slope, 0.0, 1.0))
    return float(np.mean(ends - slope * sizes)), slope
