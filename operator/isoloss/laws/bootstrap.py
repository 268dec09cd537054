"""How noisy the data are, and draws of that noise for every run and level.

Two sources: the evaluations' own noise, seen as scatter about a smoothed trajectory, and a run's
offset, which moves a whole trajectory and is seen only as scatter about the iso-loss parabola.
Errors of one trajectory at two levels are therefore strongly correlated, and the draws keep that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.levels import Size
from isoloss.laws.iso_loss.parabola import Parabola
from isoloss.laws.model import Interval, Refusal
from isoloss.usual import USUAL_RUN_NOISE

PRIOR_FREEDOM = 2.0
"""Weight of USUAL_RUN_NOISE, in degrees of freedom."""


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


@dataclass(frozen=True)
class Noise:
    """Standard deviations of ln L."""

    evaluation: float
    """Noise of one evaluation about its trajectory."""
    run: float
    """Noise of a whole trajectory about the surface."""
    freedom: float
    """Degrees of freedom behind `run`."""


def evaluation_noise(trajectories: Sequence[Trajectory]) -> float:
    """Robust standard deviation of ln L about the smoothed trajectories; 0 without dense ones."""
    dense = [t.residuals for t in trajectories if np.any(t.residuals)]
    if not dense:
        return 0.0
    return float(1.4826 * np.median(np.abs(np.concatenate(dense))))


def replicate_noise(trajectories: Sequence[Trajectory]) -> tuple[float, float]:
    """(sum of squares of ln L, its degrees of freedom) that replicates show for averaged trajectories."""
    return (
        sum(t.replicate_squares for t in trajectories),
        float(sum(t.replicate_freedom for t in trajectories)),
    )


def estimate_noise(
    trajectories: Sequence[Trajectory],
    fits: Sequence[tuple[Size, int, Parabola | Refusal]],
) -> Noise:
    """Pool the scatter about all parabolas, less what the evaluations' noise explains."""
    evaluation = evaluation_noise(trajectories)
    total = explained = freedom = 0.0
    levels = max(1, len({level for _, level, _ in fits}))
    for size, level, parabola in fits:
        if isinstance(parabola, Refusal):
            continue
        used = parabola.points[~parabola.bound[parabola.points]]
        keep = ~parabola.bound[parabola.points]
        weights, slopes = parabola.weights[keep], size.slopes[used, level]
        total += float((weights * (parabola.fit.residuals[keep] * slopes) ** 2).sum())
        freedom += parabola.freedom
        gain = np.array([(size.weights[i][level] ** 2).sum() for i in used])
        explained += parabola.freedom * evaluation**2 * float(np.average(gain, weights=weights))
    prior = PRIOR_FREEDOM * levels
    squares, replicates = replicate_noise(trajectories)
    weight = freedom + prior + levels * replicates
    shown = max(total - explained, 0.0) + prior * USUAL_RUN_NOISE**2 + levels * squares
    variance = shown / weight
    # Levels of one trajectory repeat nearly the same residual: count each size about once.
    return Noise(evaluation, float(np.sqrt(variance)), weight / levels)


def draw_log_tokens(size: Size, noise: Noise, source: DrawSource) -> Array:
    """(draws, runs, levels) errors of ln D; draw 0 is the estimate itself, without error."""
    levels = size.log_tokens.shape[1]
    run_scale = noise.run * source.scales(noise.freedom)
    errors = np.zeros((source.draws, len(size.trajectories), levels))
    for i, weights in enumerate(size.weights):
        reached = np.isfinite(size.log_tokens[i])
        if not reached.any():
            continue
        common = source.normal() * run_scale
        error = np.broadcast_to(common[:, None], (source.draws, int(reached.sum())))
        if noise.evaluation > 0:
            covariance = weights[reached] @ weights[reached].T
            error = error + noise.evaluation * source.correlated(covariance)
        errors[:, i, reached] = error / size.slopes[i, reached]
    return errors


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
