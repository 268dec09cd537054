"""Draws of what is not known, and intervals from them."""

from collections.abc import Sequence

import numpy as np

from isoloss.laws.arrays import LARGEST_LOG, Array
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.model import Interval

DECIDING = 200
"""Draws that decide which optima are believed and how much they weigh: the same ones for every seed."""

DECIDE = slice(1 + DECIDING)
"""The estimate and those draws."""


class DrawSource:
    """Random numbers whose first axis is draws: the estimate, then DECIDING draws that no seed changes.

    Whatever decides about an estimate looks at those alone, so that the estimate does not depend on the
    seed. Intervals come from the draws after them. Deciding draws come in opposite pairs.
    """

    def __init__(self, seed: int, stream: int, samples: int) -> None:
        self.draws = 1 + DECIDING + samples
        self._deciding = np.random.default_rng([stream])
        self._others = np.random.default_rng([stream, 1, seed])

    def normal(self, *shape: int) -> Array:
        """(draws, *shape)."""
        half = self._deciding.standard_normal((DECIDING // 2, *shape))
        others = self._others.standard_normal((self.draws - 1 - DECIDING, *shape))
        return np.concatenate([np.zeros((1, *shape)), half, -half, others])

    def chisquare(self, freedom: float) -> Array:
        """(draws,)."""
        half = self._deciding.chisquare(freedom, DECIDING // 2)
        others = self._others.chisquare(freedom, self.draws - 1 - DECIDING)
        return np.concatenate([[freedom], half, half, others])

    def scales(self, freedom: float) -> Array:
        """(draws,) that turn normal errors into those of Student's distribution: a variance from few data is itself uncertain."""
        return np.asarray(np.sqrt(freedom / self.chisquare(freedom)), dtype=float)

    def correlated(self, covariance: Array) -> Array:
        """(draws, n) normal errors of this covariance (n, n), none in the estimate.

        Its symmetric root is its only one of that kind: other roots, and so the draws, follow the signs
        that rounding gives to eigenvectors.
        """
        values, vectors = np.linalg.eigh(covariance)
        root = (vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T
        return np.asarray(self.normal(len(values)) @ root, dtype=float)


def replicate_noise(trajectories: Sequence[Trajectory]) -> tuple[float, float]:
    """(sum of squares of ln L, its degrees of freedom) that replicates show for averaged trajectories."""
    return (
        sum(t.replicate_squares for t in trajectories),
        float(sum(t.replicate_freedom for t in trajectories)),
    )


def with_misfit(
    draws: Array, fitted: Array, unknowns: int, deciding: int | None, source: DrawSource
) -> Array:
    """Draws (n, K) with the scatter about a fitted law added where their own noise is smaller.

    A law that bends away from its points is wrong by that much elsewhere too. The scatter counts
    double because neighbouring levels deviate together. `deciding` is how many draws decide.
    """
    residuals = draws[0] - fitted
    scatter = 2.0 * float((residuals**2).sum()) / max(len(residuals) - unknowns, 1)
    missing = max(scatter - float(draws[:deciding].var(axis=0).mean()), 0.0)
    return np.asarray(draws + np.sqrt(missing) * source.normal(draws.shape[1])[: len(draws)])


def interval(value: float, draws: Array, level: float) -> Interval:
    """The central interval of the draws, made to contain the value."""
    finite = draws[np.isfinite(draws)]
    if len(finite) == 0:
        return Interval(value, value, value)
    low, high = np.quantile(finite, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(value, float(min(low, value)), float(max(high, value)))


def exponential(value: float, draws: Array, level: float) -> Interval:
    """The interval of exp(draws) about exp(value)."""
    found = interval(value, draws, level)
    ends = (found.value, found.low, found.high)
    return Interval(*(float(np.exp(min(v, LARGEST_LOG))) for v in ends))
