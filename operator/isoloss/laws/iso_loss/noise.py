"""How noisy the data are, and draws of that noise for every run and level.

Two sources: the evaluations' own noise, seen as scatter about a smoothed trajectory, and a run's
offset, which moves a whole trajectory and is seen only as scatter about the iso-loss parabola.
Errors of one trajectory at two levels are therefore strongly correlated, and the draws keep that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.bootstrap import DrawSource, replicate_noise
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.levels import Size
from isoloss.laws.iso_loss.parabola import Parabola
from isoloss.laws.model import Refusal
from isoloss.usual import USUAL_FREEDOM, USUAL_RUN_NOISE

RUNS_AT_ONCE = 16


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
        gain = float(np.average(size.gains[used, level], weights=weights))
        explained += parabola.freedom * evaluation**2 * gain
    prior = USUAL_FREEDOM * levels
    squares, replicates = replicate_noise(trajectories)
    weight = freedom + prior + levels * replicates
    shown = max(total - explained, 0.0) + prior * USUAL_RUN_NOISE**2 + levels * squares
    variance = shown / weight
    # Levels of one trajectory repeat nearly the same residual: count each size about once.
    return Noise(evaluation, float(np.sqrt(variance)), weight / levels)


def draw_log_tokens(size: Size, noise: Noise, source: DrawSource) -> Iterator[tuple[slice, Array]]:
    """Some runs at a time, and (levels, these runs, draws) errors of their ln D.

    Draw 0 is the estimate itself, without error. Those of all runs at once would be most of what a fit keeps in memory.
    """
    runs, levels = size.log_tokens.shape
    run_scale = noise.run * source.scales(noise.freedom)
    for start in range(0, runs, RUNS_AT_ONCE):
        part = slice(start, min(start + RUNS_AT_ONCE, runs))
        errors = np.zeros((levels, part.stop - start, source.draws))
        for i in range(start, part.stop):
            reached = np.flatnonzero(np.isfinite(size.log_tokens[i]))
            if not len(reached):
                continue
            error = (source.normal() * run_scale)[:, None]
            if noise.evaluation > 0:
                weights = size.crossings[i].weights[reached]
                error = error + noise.evaluation * source.correlated(weights @ weights.T)
            errors[reached, i - start] = (error / size.slopes[i, reached]).T
        yield part, errors
