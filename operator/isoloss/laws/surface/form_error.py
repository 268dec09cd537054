"""How far the cells' own slopes deviate from the joint surface's law, beyond what noise explains.

No law of N and D is exact. Every cell of a sweep has its own residual slope over (LR, B), in ln D per ln x;
what noise does not explain of it is the law's own error. It acts like a random effect per cell: it does
not average out over the runs of a cell, it blurs the coefficients, and the target's own slope deviates as
much. The inverse Hessian turns a slope into a shift of the optimum: far along a soft ridge, little across
it. Few sizes cannot show the scatter: published sweeps then say how much is usual, see scale.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array, Flags, Indices
from isoloss.laws.least_squares import Levelled, weighted_solver
from isoloss.laws.surface.scale import effective_variance
from isoloss.usual import EXPONENT_SCATTER, FLAT_SCATTER, SCATTER_FREEDOM, STEEP_SCATTER

SHARED = 0.5
"""Share of the scatter's variance that the cells of one size have in common, if their runs differ."""


FEWEST_TO_BEND = 3
"""Token counts of a size that show whether its optimum bends over them."""


@dataclass(frozen=True)
class Residuals:
    """What a pooled fit left over, cell by cell."""

    positions: Array
    """(points, 2): ln LR and ln B, centred."""
    cell: Indices
    """(points,)"""
    values: Array
    """(points,) ln D."""
    weights: Array
    variance: float
    """Variance of a point of weight 1."""
    own_runs: float = 1.0
    """Runs per point: evaluations of one run share its training, and deviate together."""

    @cached_property
    def of_cells(self) -> tuple[Array, Array]:
        """((cells, 2) slopes less the law's, (cells, 2) noise variances)."""
        found = [_slope(self, c) for c in range(int(self.cell.max()) + 1)]
        return np.array([slope for slope, _ in found]), np.array([noise for _, noise in found])


@dataclass(frozen=True)
class Scatter:
    """Standard deviations (2,) of the slopes over ln LR and ln B about the law's, in ln D."""

    of_sizes: Array
    """What all cells of one size share."""
    of_cells: Array
    """What each cell has besides."""

    @property
    def total(self) -> Array:
        """(2,) of a cell of a size that was not seen."""
        return np.hypot(self.of_sizes, self.of_cells)

    def of_optimum(self, hessian: Array) -> Array:
        """(2, 2) covariance of ln LR and ln B that it gives the optimum of such a cell."""
        turn = np.linalg.inv(hessian)
        return np.asarray(turn @ np.diag(self.total**2) @ turn.T, dtype=float)


def usual_scatter(hessian: Array) -> Array:
    """(2,) variance of slopes in a valley of this curvature, as published sweeps have it."""
    return np.asarray(FLAT_SCATTER**2 + STEEP_SCATTER**2 * np.diag(hessian @ hessian), dtype=float)


class Shown(NamedTuple):
    """Slopes of cells or sizes as a sweep shows them."""

    slopes: Array
    """(n, 2) less the law's."""
    noise: Array
    """(n, 2) variances."""
    weights: Array
    """(n, 2)"""
    freedom: float
    """Degrees of freedom that the law's coefficients leave to the slopes."""
    worth: float = 1.0
    """What one of the slopes counts for."""

    def mean_squares(self) -> tuple[Array, Array]:
        """(2,) of the slopes, the part that the law has taken made up for, and of their noise."""
        # Fitted coefficients take their part of the slopes with them.
        left = len(self.slopes) / self.freedom * self.slopes**2
        slopes, noise = (
            np.average(squares, axis=0, weights=self.weights) for squares in (left, self.noise)
        )
        return slopes, noise


Measure = Callable[[Shown, Array, float], Array]
"""Slopes, their usual variances (2,) and degrees of freedom to variances (2,) beyond noise."""


def mean_variance(shown: Shown, usual: Array, _known: float) -> Array:
    """The mean square, pooled with the usual one: what decisions about the law go by."""
    if shown.freedom <= 0:
        return usual
    slopes, noise = shown.mean_squares()
    seen = shown.freedom * shown.worth
    found = seen * np.maximum(slopes - noise, 0.0) + SCATTER_FREEDOM * usual
    return np.asarray(found / (seen + SCATTER_FREEDOM), dtype=float)


def interval_variance(shown: Shown, usual: Array, known: float) -> Array:
    """What holds as many further slopes as an interval is to hold, with Student's quantile of `known`."""
    if shown.freedom <= 0:
        return effective_variance(np.zeros(2), np.zeros(2), usual, 0.0, known)
    slopes, noise = shown.mean_squares()
    return effective_variance(slopes, noise, usual, shown.freedom * shown.worth, known)


def scatter(
    residuals: Residuals,
    sizes: Sequence[float],
    hessian: Array,
    unknowns: int,
    measure: Measure = interval_variance,
) -> Scatter:
    """How far the slopes of cells and sizes deviate; `sizes` (cells,) are ln N.

    `unknowns` is the number of the law's coefficients per hyperparameter, two of them of sizes. What
    the data do not show is taken as usual.
    """
    slopes, noise = residuals.of_cells
    usual = usual_scatter(hessian)
    weights = 1.0 / (noise + usual)
    known = scatter_freedom(len(set(sizes)))
    every = Shown(slopes, noise, weights**2, len(slopes) - unknowns, residuals.own_runs)
    cells = measure(every, usual, known)
    means, errors = _of_sizes(sizes, slopes, noise, weights)
    groups = Shown(means, errors, np.ones_like(means), len(means) - 2)
    shared = shared_by_size(residuals)
    of_sizes = measure(groups, shared * usual, known)
    return Scatter(np.sqrt(of_sizes), np.sqrt((1.0 - shared) * cells))


def shared_by_size(residuals: Residuals) -> float:
    """Share of the scatter's variance that the cells of one size have in common."""
    return 1.0 - (1.0 - SHARED) * residuals.own_runs


def size_slopes(
    residuals: Residuals, sizes: Sequence[float], hessian: Array
) -> tuple[Array, Array]:
    """((n, 2) slopes over ln LR and ln B less the law's, (n, 2) noise variances) of the sizes, in the order they appear in."""
    slopes, noise = residuals.of_cells
    return _of_sizes(sizes, slopes, noise, 1.0 / (noise + usual_scatter(hessian)))


def _of_sizes(
    sizes: Sequence[float], slopes: Array, noise: Array, weights: Array
) -> tuple[Array, Array]:
    """((n, 2) weighted means of the slopes, (n, 2) noise variances) from those of cells (cells, 2)."""
    members = [np.array(sizes) == size for size in dict.fromkeys(sizes)]
    means = [np.average(slopes[member], axis=0, weights=weights[member]) for member in members]
    return np.array(means), np.array([noise[member].mean(axis=0) for member in members])


def scatter_freedom(sizes: int) -> float:
    """Degrees of freedom behind the scatter of `sizes` sizes about a law with a trend over them."""
    return max(sizes - 2, 0) + SCATTER_FREEDOM


def _slope(residuals: Residuals, cell: int) -> tuple[Array, Array]:
    """A cell's own slope less the law's, (2,), and the noise variance of that, (2,)."""
    member = residuals.cell == cell
    weights = residuals.weights[member]
    design = np.column_stack([np.ones(member.sum()), residuals.positions[member]])
    solver = weighted_solver(design, weights)[1:]
    return solver @ residuals.values[member], residuals.variance * (solver**2 / weights).sum(
        axis=1
    )


def coefficient_covariance(
    solver: Array, residuals: Residuals, sizes: Sequence[float], spread: Scatter
) -> Array:
    """What the cells' scatter does to coefficients = solver @ ln D; `sizes` (cells,) are ln N."""
    blurs: dict[float, Array] = {}
    covariance = np.zeros((len(solver), len(solver)))
    for cell, size in enumerate(sizes):
        member = residuals.cell == cell
        blur = solver[:, member] @ residuals.positions[member]
        blurs[size] = blurs.get(size, np.zeros_like(blur)) + blur * spread.of_sizes
        covariance += (blur * spread.of_cells**2) @ blur.T
    return np.asarray(covariance + sum(b @ b.T for b in blurs.values()), dtype=float)


def usual_end(log_params: Array, log_tokens: Array) -> tuple[float, float]:
    """(intercept, slope) of ln D at the end of a size's runs over ln N, from those of cells (n,).

    The slope is between none and that of equal tokens per parameter.
    """
    sizes = np.unique(log_params)
    ends = np.array([log_tokens[log_params == size].max() for size in sizes])
    slope = float(np.polyfit(sizes, ends, 1)[0]) if len(sizes) > 1 else 0.0
    slope = float(np.clip(slope, 0.0, 1.0))
    return float(np.mean(ends - slope * sizes)), slope


def exponent_scatter(
    residuals: Residuals, sizes: Sequence[float], hessian: Array, past_end: Array
) -> Array:
    """(2,) standard deviations over sizes of how the slopes over ln LR and ln B grow per ln D.

    `past_end` (points,) is ln D less its usual end at the point's size; `sizes` (cells,) are ln N.
    """
    every = [_growth(residuals, member, past_end) for member in _members(residuals, sizes)]
    growths = np.array([growth for growth, _ in every])
    noise = np.array([variance for _, variance in every])
    usual = np.diag(hessian @ np.diag(EXPONENT_SCATTER**2) @ hessian)
    shown = Shown(growths, noise, np.ones_like(noise), len(growths) - 1)
    found = interval_variance(shown, usual, scatter_freedom(len(growths)))
    return np.sqrt((1.0 - residuals.own_runs) * found)


def exponent_covariance(
    solver: Array, residuals: Residuals, sizes: Sequence[float], past_end: Array, spread: Array
) -> Array:
    """What exponents of D that differ from size to size by `spread` do to coefficients = solver @ ln D."""
    total = np.zeros((len(solver), len(solver)))
    for member in _members(residuals, sizes):
        pushed = residuals.positions[member] * past_end[member, None]
        blur = solver[:, member] @ pushed * spread
        total += blur @ blur.T
    return total


def _members(residuals: Residuals, sizes: Sequence[float]) -> list[Flags]:
    """Per size, which points are its own."""
    return [(np.array(sizes) == size)[residuals.cell] for size in dict.fromkeys(sizes)]


def _growth(residuals: Residuals, member: Flags, past_end: Array) -> tuple[Array, Array]:
    """How a size's own slope less the law's grows per ln D, (2,), and the noise variance of that, (2,)."""
    solver = _slope_solver(residuals, member, past_end, 1)
    noise = residuals.variance * (solver**2 / residuals.weights[member]).sum(axis=1)
    return solver @ residuals.values[member], noise


def bend_solvers(residuals: Residuals, sizes: Sequence[float], past_end: Array) -> list[Array]:
    """Maps (2, points) from residuals to the coefficients of (ln D)^2 in a size's slopes over ln LR and ln B.

    Of the sizes with losses at FEWEST_TO_BEND token counts: fewer show none. `sizes` (cells,) are ln N.
    """
    return [
        _bend_solver(residuals, member, past_end)
        for member in _members(residuals, sizes)
        if len(set(residuals.cell[member])) >= FEWEST_TO_BEND
    ]


def _bend_solver(residuals: Residuals, member: Flags, past_end: Array) -> Array:
    """(2, points)"""
    solver = np.zeros((2, len(member)))
    solver[:, member] = _slope_solver(residuals, member, past_end, 2)
    return solver


def _slope_solver(residuals: Residuals, member: Flags, past_end: Array, degree: int) -> Array:
    """(2, members): maps a size's values to the coefficients of (ln D)^degree, the highest, in its slopes over ln LR and ln B.

    Every cell has a level of its own, as in the fit: its points lie about an optimum that moves over tokens, and one level for
    all would take a part of the bend.
    """
    positions = residuals.positions[member]
    along = past_end[member, None] - past_end[member].mean()
    slopes = np.column_stack([positions * along**power for power in range(degree + 1)])
    cell = np.unique(residuals.cell[member], return_inverse=True)[1]
    return Levelled(cell, residuals.weights[member]).solver(slopes)[-2:]
