"""Errors of the points that a surface is fitted to, as residuals and replicates show them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import Array, Indices
from isoloss.laws.least_squares import Levelled, shared_variance


@dataclass(frozen=True)
class Noise:
    """Errors of points: those of one run have a part in common."""

    run: Indices
    """(points,)"""
    variances: Array
    """(points,) of z."""
    shared: float
    """Share of the variance that the points of one run have in common."""

    @classmethod
    def of_residuals(
        cls,
        residuals: Array,
        levels: Levelled,
        runs: Indices,
        unknowns: float,
        taken: int,
        seeds: tuple[float, float] = (0.0, 0.0),
    ) -> Noise:
        """As the residuals (points,) of a fit with so many unknowns show it, of which `taken` are of what whole runs share.

        `seeds` are the sum of squares and the degrees of freedom of what runs that differ in their seed alone show. Weights
        fall with the distance from the optimum because the parabola errs there. Noise does not fall towards the optimum,
        though: no point is better known than those near it prove to be.
        """
        weights, member = levels.weights, np.unique(runs, return_inverse=True)[1]
        count, left = int(member.max()) + 1, max(len(residuals) - unknowns, 1.0)
        scaled = residuals * np.sqrt(weights)
        total = float((scaled**2).sum()) / left
        freedom = max(float(count - taken), 2.0)
        shared = max(shared_variance(scaled, member) * count / freedom, 0.0)
        shared = min(shared, total * count / freedom)
        shared = (freedom * shared + seeds[0]) / (freedom + seeds[1])
        total = max(total, shared)
        near = float((weights * residuals**2).sum() / weights.sum()) * len(weights) / left
        variances = np.maximum(total / weights, near)
        return cls(member, variances, shared / total if total > 0.0 else 0.0)

    def covariance(self, maps: Array, points: Indices | slice = slice(None)) -> Array:
        """(n, n) of maps (n, points) times the errors of these points, whose runs have no other ones."""
        gain = maps * np.sqrt(self.variances[points])
        member = np.unique(self.run[points], return_inverse=True)[1]
        runs = np.stack([np.bincount(member, row) for row in gain])
        own = gain @ gain.T
        return np.asarray(self.shared * runs @ runs.T + (1.0 - self.shared) * own, dtype=float)
