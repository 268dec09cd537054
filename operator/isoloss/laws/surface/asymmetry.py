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

FEWEST_LEFT = 2.0
"""Runs beyond the unknowns from which on the noise is known well enough."""
CONSTANTS_PER_SIZE = 3
"""Errors that whole runs share are taken up by a size's level and gradient."""
SHARED_CURVATURES = 3


class Sample(NamedTuple):
    """Points of a joint fit."""

    positions: Array
    """(points, 2): ln LR and ln B, centred."""
    levels: Array
    """(points, cells) indicators of their cells."""
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
    free, cubic = _of_cells(sample) * root[:, None], cubic * root[:, None]
    values = sample.values * root
    every = np.column_stack([free, cubic])
    left = values - every @ np.linalg.lstsq(every, values, rcond=1e-10)[0]
    _, run = np.unique(sample.runs, return_inverse=True)
    taken = CONSTANTS_PER_SIZE * sample.sizes + SHARED_CURVATURES + count
    freedom = float(run.max() + 1 - taken)
    spare = len(left) - np.linalg.matrix_rank(every, tol=1e-8)
    if freedom < FEWEST_LEFT or spare < FEWEST_LEFT:
        return untold
    single, shared = _noise(left, run, float(spare), freedom)
    if single <= 0.0:
        return untold
    table = _whitened(np.column_stack([free, cubic, values]), run, single, shared)
    free, rest = table[:, : free.shape[1]], table[:, free.shape[1] :]
    rest = rest - free @ np.linalg.lstsq(free, rest, rcond=1e-10)[0]
    information = rest[:, :count].T @ rest[:, :count]
    covariance: Array = np.asarray(np.linalg.inv(information + np.diag(1.0 / usual)), dtype=float)
    return covariance @ rest[:, :count].T @ rest[:, count], covariance


def _of_cells(sample: Sample) -> Array:
    """(points, terms): one curvature for all, a level and a gradient per cell."""
    x, y = sample.positions.T
    shared = np.stack([0.5 * x**2, x * y, 0.5 * y**2], axis=1)
    own = [sample.levels * v[:, None] for v in (np.ones_like(x), x, y)]
    return np.concatenate([shared, *own], axis=1)


def _noise(left: Array, run: Indices, spare: float, freedom: float) -> tuple[float, float]:
    """Variances of a point's own error and of what the points of one run share, from residuals."""
    counts = np.bincount(run)
    total = float((left**2).sum()) / spare
    pairs = float((counts**2).sum() - len(left))
    shared = float((np.bincount(run, left) ** 2).sum() - (left**2).sum())
    shared = shared / pairs * len(counts) / freedom if pairs > 0 else 0.0
    shared = max(shared, 0.0)
    # A run's points are never known better than its own residuals among them.
    return max(total - shared, 0.1 * total), shared


def _whitened(table: Array, run: Indices, single: float, shared: float) -> Array:
    """Rows of unit variance and without correlation, given what rows of one run share."""
    counts = np.bincount(run)
    means = np.stack([np.bincount(run, column) for column in table.T], axis=1) / counts[:, None]
    kept = np.sqrt(single / (single + counts * shared))
    return np.asarray((table - ((1.0 - kept)[:, None] * means)[run]) / np.sqrt(single))
