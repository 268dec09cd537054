"""Weighted least squares as a linear map, also with a level for each of many groups."""

from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array, Indices

AT_ONCE = 1024
"""Rows of a matrix that are looked at together: more need more memory, and no less time."""


def weighted_solver(design: Array, weights: Array) -> Array:
    """(terms, points): the linear map from values to coefficients of weighted least squares."""
    root = np.sqrt(weights)
    return _solver(design * root[:, None], root)


def _solver(columns: Array, root: Array) -> Array:
    """The same of a design times root weights."""
    rows = _fewer_rows(columns)
    # As np.linalg.pinv has it, which takes half as long again: a fit makes thousands of these.
    u, sizes, vt = np.linalg.svd(rows, full_matrices=False)
    large = sizes > ROUNDING * sizes.max(initial=0.0)
    half = vt.T * np.divide(1.0, sizes, where=large, out=np.zeros_like(sizes))
    solver = np.matmul(half, u.T) if rows is columns else np.matmul(half @ half.T, columns.T)
    solver *= root
    return np.asarray(solver, dtype=float)


def _fewer_rows(columns: Array) -> Array:
    """(rows, k) of the same singular values and right vectors as columns (points, k), by QR of some at a time: left vectors of many
    points would lie in memory several times."""
    while len(columns) > AT_ONCE:
        parts = (columns[at : at + AT_ONCE] for at in range(0, len(columns), AT_ONCE))
        columns = np.concatenate([np.linalg.qr(part, mode="r") for part in parts])
    return columns


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

    def without_levels(self, *columns: Array) -> Array:
        """Columns (points, k), several beside one another, or one (points,), less their weighted means in each group."""
        found = np.concatenate(columns, axis=-1) if len(columns) > 1 else columns[0].copy()
        total = np.bincount(self.group, self.weights)
        # One after the other: those of many points lie in memory once.
        for each in np.atleast_2d(found.T):
            each -= (np.bincount(self.group, self.weights * each) / total)[self.group]
        return found

    def _weighted(self, *designs: Array) -> Array:
        """(points, terms) without levels, times root weights."""
        columns = self.without_levels(*designs)
        columns *= np.sqrt(self.weights)[:, None]
        return columns

    def solver(self, *designs: Array) -> Array:
        """(terms, points): the linear map from values to the coefficients of designs (points, k) beside one another."""
        return _solver(self._weighted(*designs), np.sqrt(self.weights))

    def unknowns(self, design: Array) -> int:
        """How many coefficients the points determine, the levels included."""
        columns = _fewer_rows(self._weighted(design))
        return int(np.linalg.matrix_rank(columns, tol=ROUNDING)) + len(np.unique(self.group))
