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
from isoloss.laws.bootstrap import DrawSource, replicate_noise
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.levels import Size
from isoloss.laws.iso_loss.parabola import Parabola
from isoloss.laws.model import Refusal
from isoloss.usual import USUAL_RUN_NOISE

PRIOR_FREEDOM = 2.0
"""Weight of USUAL_RUN_NOISE, in degrees of freedom."""


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
