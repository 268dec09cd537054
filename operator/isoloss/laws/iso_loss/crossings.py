"""The tokens at which a smoothed trajectory reaches a loss. Noise makes the first raw crossing too early."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import Array, Indices
from isoloss.laws.data.smoothing import DENSE
from isoloss.laws.data.trajectories import Trajectory
from isoloss.usual import USUAL_SLOPE

SAME_LOSS = 1e-9
"""Losses this close in ln L are equal. Levels are placed at the ends of runs, where rounding must not decide."""


@dataclass(frozen=True)
class Crossings:
    """Where one trajectory reaches each of K losses."""

    log_tokens: Array
    """(K,) NaN where not reached or reached before the trajectory's first evaluation."""
    slope: Array
    """(K,) dlnL/dlnD there, negative."""
    weights: Array
    """(K, n) how an error of each ln L moves the smoothed ln L at the crossing."""


def crossings(trajectory: Trajectory, log_losses: Array) -> Crossings:
    """The tokens at which the smoothed trajectory reaches each loss (ln nats)."""
    k, n = len(log_losses), len(trajectory.log_tokens)
    empty = Crossings(np.full(k, np.nan), np.full(k, np.nan), np.zeros((k, n)))
    keep = _strictly_decreasing(trajectory.smooth)
    if len(keep) == 1:
        return _single(trajectory, log_losses)
    if len(keep) == 0:
        return empty
    x, y = trajectory.log_tokens[keep], trajectory.smooth[keep]
    inside = (log_losses <= y[0] + SAME_LOSS) & (log_losses >= y[-1] - SAME_LOSS)
    wanted = -np.clip(log_losses, y[-1], y[0])
    # Few points far apart need a curve between them; many do not.
    between = _curve(-y, x, wanted) if len(x) < DENSE else np.interp(wanted, -y, x)
    log_tokens = np.where(inside, between, np.nan)
    filled = np.where(inside, between, x[0])
    right = np.clip(np.searchsorted(x, filled), 1, len(x) - 1)
    left = right - 1
    gap = x[right] - x[left]
    t = np.clip((filled - x[left]) / gap, 0.0, 1.0)
    # A mean of several evaluations errs less than one.
    rows = trajectory.smoother[keep] / np.sqrt(trajectory.counts)
    weights = (1.0 - t)[:, None] * rows[left] + t[:, None] * rows[right]
    slope = np.minimum((y[right] - y[left]) / gap, -1e-6)
    return Crossings(log_tokens, np.where(inside, slope, np.nan), weights)


def _single(trajectory: Trajectory, log_losses: Array) -> Crossings:
    """One evaluation gives the tokens to its own loss only, as in a table of tokens to a target."""
    on = np.abs(log_losses - trajectory.smooth[0]) < SAME_LOSS
    weights = np.zeros((len(log_losses), len(trajectory.log_tokens)))
    weights[on, 0] = 1.0
    return Crossings(
        np.where(on, trajectory.log_tokens[0], np.nan),
        np.where(on, -USUAL_SLOPE, np.nan),
        weights,
    )


def _curve(x: Array, y: Array, wanted: Array) -> Array:
    """Monotone cubic interpolation."""
    # Not above: scipy.interpolate takes longer to import than a prediction takes in all.
    from scipy.interpolate import PchipInterpolator

    return np.asarray(PchipInterpolator(x, y)(wanted))


def _strictly_decreasing(smooth: Array) -> Indices:
    if len(smooth) == 0:
        return np.zeros(0, dtype=np.intp)
    keep = np.concatenate([[True], np.diff(smooth) < -SAME_LOSS])
    return np.flatnonzero(keep)
