"""The terms of the joint surface, with cubic ones if its valley is steeper on one side than on the other.

Cubic terms count from the optimum of every (N, D), where they have neither slope nor curvature: the optimum's
law is read off the quadratic part as before. Where the optimum is follows from the fit, so that the two are
found in turn.

Three learning rates, too few to show it directly, leave a third derivative open in every single cell. But the optimum moves through the
grid while tokens grow, and a skewed valley is then steeper in some cells than in others. That alone is
looked at: every cell has a level and a gradient of its own, so that nothing is assumed about how optima move.
The usual mean squares of published sweeps are the prior, and stay if the cells tell nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array, Indices
from isoloss.laws.least_squares import NO_COLUMN, Levelled, shared_variance
from isoloss.laws.surface.terms import PER_QUANTITY, Centre, Shape, optimum_law
from isoloss.usual import USUAL_ASYMMETRY

TURNS = 6
FEWEST_LINES = 4
"""Learning rates (or batch sizes) of a grid that show a third derivative."""
CLEAR = 4.0
"""F of the cubic terms beyond which they are no chance."""
FARTHEST = 2.0
"""|ln x| from the optimum at which a cubic term stops to grow."""
FEWEST_LEFT = 2.0
"""Runs beyond the unknowns from which on the noise is known well enough."""
CONSTANTS_PER_SIZE = 3
"""Errors that whole runs share are taken up by a size's level and gradient."""
SAME_PLANE = 1e-8
"""Singular values below this share of the largest count as none: the runs of a cell have one learning rate, or one batch size."""


class Points(NamedTuple):
    """(points,) each, from their centre."""

    x: Array
    """ln LR"""
    y: Array
    """ln B"""
    n: Array
    """ln N"""
    d: Array
    """ln D"""


@dataclass(frozen=True)
class Valley:
    """The terms of a fit, and the cubic ones that it does without."""

    design: Array
    """(points, terms): Shape, and cubic terms if they are clear; a level per cell goes with them."""
    unseen: Array
    """(points, k): cubic terms that are left out, …"""
    unseen_covariance: Array
    """(k, k): … and their coefficients' mean squares, estimated from the data and published sweeps."""


def valley(points: Points, cells: Levelled, z: Array, runs: Indices) -> Valley:
    """Quadratic terms, and cubic ones if `z`, the wasted ln D, shows them.

    `runs` (points,) numbers the trajectories, whose points err together.
    """
    plain = quadratic(points)
    coefficients = cells.solver(plain) @ z
    if not _convex(coefficients):
        return Valley(plain, np.zeros((len(z), 0)), np.zeros((0, 0)))
    skewed = _skewed(points, cells, coefficients, z, len(np.unique(runs)))
    if skewed is not None:
        return skewed
    cubic = _cubic(points, coefficients)
    mean, covariance = shown_asymmetry(points, cells, z, runs, cubic, _usual(coefficients))
    return Valley(plain, cubic, covariance + np.outer(mean, mean))


def _skewed(
    points: Points, cells: Levelled, coefficients: Array, z: Array, runs: int
) -> Valley | None:
    """With cubic terms if the grid has the values for them and they are no chance, from the plain fit's coefficients."""
    wanted = [len(np.unique(np.round(v, 6))) >= FEWEST_LINES for v in (points.x, points.y)]
    plain = quadratic(points)
    freedom = runs - cells.unknowns(plain)
    extra = 2 * sum(wanted)
    if not any(wanted) or freedom <= extra:
        return None
    before = _squares(cells, z - plain @ coefficients)
    seen = np.repeat(wanted, 2)
    for _ in range(TURNS):
        cubic = _cubic(points, coefficients)
        skewed = np.concatenate([plain, cubic[:, seen]], axis=1)
        coefficients = cells.solver(skewed) @ z
        if not _convex(coefficients):
            return None
    after = _squares(cells, z - skewed @ coefficients)
    if (before - after) / extra <= CLEAR * after / max(freedom - extra, 1):
        return None
    return Valley(skewed, cubic[:, ~seen], np.diag(_usual(coefficients)[~seen]))


def _usual(coefficients: Array) -> Array:
    """(4,) mean squares of cubic coefficients in a valley of this curvature."""
    xx, yy = coefficients[Shape.XX], coefficients[Shape.YY]
    mixed = np.sqrt(xx * yy)
    return np.asarray((USUAL_ASYMMETRY * np.array([xx, mixed, yy, mixed])) ** 2)


def quadratic(points: Points) -> Array:
    """(points, 9): the terms of Shape."""
    x, y, n, d = points
    return np.stack([0.5 * x**2, x * y, 0.5 * y**2, x, x * n, x * d, y, y * n, y * d], axis=1)


def _cubic(points: Points, coefficients: Array) -> Array:
    """(points, 4): u^3 / 6, u^2 v / 2, v^3 / 6 and u v^2 / 2, with u and v counted from the optimum."""
    law = optimum_law(coefficients[: len(Shape)], Centre(0.0, 0.0, 0.0, 0.0))[0]
    where = np.stack([np.ones_like(points.n), points.n, points.d])
    u = np.clip(points.x - law[:PER_QUANTITY] @ where, -FARTHEST, FARTHEST)
    v = np.clip(points.y - law[PER_QUANTITY:] @ where, -FARTHEST, FARTHEST)
    return np.stack([u**3 / 6, u**2 * v / 2, v**3 / 6, u * v**2 / 2], axis=1)


def _squares(cells: Levelled, left: Array) -> float:
    return float((cells.weights * cells.without_levels(left) ** 2).sum())


def _convex(coefficients: Array) -> bool:
    return bool(optimum_law(coefficients[: len(Shape)], Centre(0.0, 0.0, 0.0, 0.0))[1])


def shown_asymmetry(
    points: Points, cells: Levelled, z: Array, runs: Indices, cubic: Array, usual: Array
) -> tuple[Array, Array]:
    """(mean (k,), covariance (k, k)) of the coefficients of `cubic` (points, k), with prior variances `usual` (k,).

    `z` and `runs` as in `valley`.
    """
    count = cubic.shape[1]
    untold = np.zeros(count), np.diag(usual)
    root = np.sqrt(cells.weights)
    own = _of_cells(points, cells.group, root)
    # Three curvatures, the cubic terms and the values: what each cell's own plane leaves of them.
    table = np.column_stack([quadratic(points)[:, : Shape.X], cubic, z]) * root[:, None]
    table -= own @ (own.T @ table)
    terms, values = table[:, :-1], table[:, -1]
    left = values - terms @ np.linalg.lstsq(terms, values, rcond=1e-10)[0]
    _, run = np.unique(runs, return_inverse=True)
    sizes = len(np.unique(np.round(points.n, 9)))
    taken = CONSTANTS_PER_SIZE * sizes + Shape.X + count
    freedom = float(run.max() + 1 - taken)
    spare = len(left) - own.shape[1] - int(np.linalg.matrix_rank(terms, tol=NO_COLUMN))
    if freedom < FEWEST_LEFT or spare < FEWEST_LEFT:
        return untold
    single, common = _noise(left, run, float(spare), freedom)
    if single <= 0.0:
        return untold
    own, table = (_whitened(each, run, single, common) for each in (own, table))
    # Planes are orthogonal before, and well apart after this: their normal equations lose no digits.
    table = table - own @ np.linalg.solve(own.T @ own, own.T @ table)
    curved, rest = table[:, : Shape.X], table[:, Shape.X :]
    rest = rest - curved @ np.linalg.lstsq(curved, rest, rcond=1e-10)[0]
    information = rest[:, :count].T @ rest[:, :count]
    covariance: Array = np.asarray(np.linalg.inv(information + np.diag(1.0 / usual)), dtype=float)
    return covariance @ rest[:, :count].T @ rest[:, count], covariance


def _of_cells(points: Points, group: Indices, root: Array) -> Array:
    """(points, terms): an orthonormal basis of the planes, a level and a gradient for each cell, times `root`."""
    planes = np.column_stack([np.ones(len(root)), points.x, points.y]) * root[:, None]
    bases = []
    for cell in np.unique(group):
        members = np.flatnonzero(group == cell)
        vectors, sizes, _ = np.linalg.svd(planes[members], full_matrices=False)
        basis = np.zeros((len(root), int((sizes > SAME_PLANE * sizes[0]).sum())))
        basis[members] = vectors[:, : basis.shape[1]]
        bases.append(basis)
    return np.concatenate(bases, axis=1)


def _noise(left: Array, run: Indices, spare: float, freedom: float) -> tuple[float, float]:
    """Variances of a point's own error and of what the points of one run share, from residuals."""
    total = float((left**2).sum()) / spare
    shared = max(shared_variance(left, run) * (int(run.max()) + 1) / freedom, 0.0)
    # A run's points are never known better than its own residuals among them.
    return max(total - shared, 0.1 * total), shared


def _whitened(table: Array, run: Indices, single: float, shared: float) -> Array:
    """Rows of unit variance and without correlation, given what rows of one run share."""
    counts = np.bincount(run)
    means = np.stack([np.bincount(run, column) for column in table.T], axis=1) / counts[:, None]
    kept = np.sqrt(single / (single + counts * shared))
    return np.asarray((table - ((1.0 - kept)[:, None] * means)[run]) / np.sqrt(single))
