"""Weighted least squares as a linear map, also with a level for each of many groups."""

from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array, Indices


def weighted_solver(design: Array, weights: Array) -> Array:
    """(terms, points): the linear map from values to coefficients of weighted least squares."""
    root = np.sqrt(weights)
    # As np.linalg.pinv has it, which takes half as long again: a fit makes thousands of these.
    u, sizes, vt = np.linalg.svd(design * root[:, None], full_matrices=False)
    large = sizes > ROUNDING * sizes.max(initial=0.0)
    inverse = np.divide(1.0, sizes, where=large, out=np.zeros_like(sizes))
    solver = np.matmul(vt.T, inverse[:, None] * u.T) * root
    return np.asarray(solver, dtype=float)


def without(columns: Array, values: Array) -> Array:
    """What least squares by columns (points, k) leave of values (points, n)."""
    return np.asarray(
        values - columns @ np.linalg.lstsq(columns, values, rcond=ROUNDING)[0], dtype=float
    )


def shared_variance(residuals: Array, run: Indices) -> float:
    """What points of one run have in common, on average over pairs of them; 0 if no run has two."""
    pairs = float((np.bincount(run) ** 2).sum() - len(residuals))
    shared = float((np.bincount(run, residuals) ** 2).sum() - (residuals**2).sum())
    return shared / pairs if pairs > 0 else 0.0


class Levelled(NamedTuple):
    """Least squares with a level of its own for each group of points.

    Columns and values without their means in each group give the same coefficients, residuals and solver as a column for
    each level would (the theorem of Frisch, Waugh and Lovell), of which there may be thousands.
    """

    group: Indices
    """(points,)"""
    weights: Array
    """(points,)"""

    def without_levels(self, columns: Array) -> Array:
        """Columns (points, k), or one (points,), less their weighted means in each group."""
        total = np.bincount(self.group, self.weights)
        sums = [np.bincount(self.group, self.weights * each) for each in np.atleast_2d(columns.T)]
        means = (np.stack(sums) / total).T[self.group]
        return np.asarray(columns - means.reshape(columns.shape), dtype=float)

    def solver(self, design: Array) -> Array:
        """(terms, points): the linear map from values to the coefficients of `design` (points, terms)."""
        return weighted_solver(self.without_levels(design), self.weights)

    def coefficients(self, design: Array, values: Array) -> Array:
        """(terms,): the solver's of these values (points,), for less work than the solver itself."""
        root = np.sqrt(self.weights)
        columns = self.without_levels(design) * root[:, None]
        found = np.linalg.lstsq(columns, values * root, rcond=ROUNDING)[0]
        return np.asarray(found, dtype=float)

    def unknowns(self, design: Array) -> int:
        """How many coefficients the points determine, the levels included."""
        columns = self.without_levels(design) * np.sqrt(self.weights)[:, None]
        return int(np.linalg.matrix_rank(columns, tol=ROUNDING)) + len(np.unique(self.group))
