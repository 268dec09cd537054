"""What a sweep shows of its valley's asymmetry when too few values of a hyperparameter show it directly.

Three learning rates leave a third derivative open in every single cell. But the optimum moves through the
grid while tokens grow, and a skewed valley is then steeper in some cells than in others. That alone is
looked at: every cell has a level and a gradient of its own, so that nothing is assumed about how optima move.
The usual mean squares of published sweeps are the prior, and stay if the cells tell nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array, Indices
from isoloss.laws.least_squares import NO_COLUMN, shared_variance

FEWEST_LEFT = 2.0
"""Runs beyond the unknowns from which on the noise is known well enough."""
CONSTANTS_PER_SIZE = 3
"""Errors that whole runs share are taken up by a size's level and gradient."""
SHARED_CURVATURES = 3
SAME_PLANE = 1e-8
"""Singular values below this share of the largest count as none: the runs of a cell have one learning rate, or one batch size."""


class Sample(NamedTuple):
    """Points of a joint fit."""

    positions: Array
    """(points, 2): ln LR and ln B, centred."""
    cell: Indices
    """(points,)"""
    values: Array
    """(points,) wasted ln D."""
    weights: Array
    runs: Indices
    """(points,) trajectories, whose points err together."""
    sizes: int


def shown_asymmetry(sample: Sample, cubic: Array, usual: Array) -> tuple[Array, Array]:
    """(mean (k,), covariance (k, k)) of the coefficients of `cubic` (points, k), with prior variances `usual` (k,)."""
    count = cubic.shape[1]
    untold = np.zeros(count), np.diag(usual)
    root = np.sqrt(sample.weights)
    own = _of_cells(sample, root)
    x, y = sample.positions.T
    shared = np.stack([0.5 * x**2, x * y, 0.5 * y**2], axis=1)
    # Three curvatures, the cubic terms and the values: what each cell's own plane leaves of them.
    table = np.column_stack([shared, cubic, sample.values]) * root[:, None]
    table -= own @ (own.T @ table)
    terms, values = table[:, :-1], table[:, -1]
    left = values - terms @ np.linalg.lstsq(terms, values, rcond=1e-10)[0]
    _, run = np.unique(sample.runs, return_inverse=True)
    taken = CONSTANTS_PER_SIZE * sample.sizes + SHARED_CURVATURES + count
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
    curved, rest = table[:, :SHARED_CURVATURES], table[:, SHARED_CURVATURES:]
    rest = rest - curved @ np.linalg.lstsq(curved, rest, rcond=1e-10)[0]
    information = rest[:, :count].T @ rest[:, :count]
    covariance: Array = np.asarray(np.linalg.inv(information + np.diag(1.0 / usual)), dtype=float)
    return covariance @ rest[:, :count].T @ rest[:, count], covariance


def _of_cells(sample: Sample, root: Array) -> Array:
    """(points, terms): an orthonormal basis of the planes, a level and a gradient for each cell, times `root`."""
    planes = np.column_stack([np.ones(len(root)), sample.positions]) * root[:, None]
    bases = []
    for cell in np.unique(sample.cell):
        members = np.flatnonzero(sample.cell == cell)
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
