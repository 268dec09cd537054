"""Which losses to look at, and the tokens that every run of a size needs to reach them.

The smoothed trajectory tells: noise makes the first raw crossing too early.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array, Flags, Indices
from isoloss.laws.data.smoothing import DENSE
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.model import Refusal, RefusalReason
from isoloss.laws.quadratic import TERMS
from isoloss.usual import USUAL_SLOPE

FEWEST_LEVELS = 4
"""With an optimum, that a law needs."""
LEVELS = 24
"""Losses at which optima are looked for, and places on a frontier that stand for it where these are not known."""


@dataclass(frozen=True)
class Size:
    """All trajectories of one size, their tokens to every level, and the grid's lines."""

    params: float
    flops_per_token: float
    trajectories: tuple[Trajectory, ...]
    log_tokens: Array
    """(runs, levels) NaN if not reached."""
    slopes: Array
    """(runs, levels) dlnL/dlnD."""
    crossings: tuple[Crossings, ...]
    """Of each run."""
    gains: Array
    """(runs, levels) variance of the smoothed ln L there per unit of that of an evaluation."""
    covered: Flags
    """(levels,) whether enough runs reach the level."""

    @cached_property
    def x(self) -> Array:
        """ln LR per run."""
        return np.log([t.learning_rate for t in self.trajectories])

    @cached_property
    def y(self) -> Array:
        """ln B per run."""
        return np.log([t.batch_size for t in self.trajectories])

    @cached_property
    def lines(self) -> tuple[Array, Array]:
        """The grid's values of ln LR and of ln B."""
        return np.unique(self.x), np.unique(self.y)


def runs_needed(runs: int) -> int:
    """How many runs of a size must reach a level for the size to take part in it."""
    return min(runs, max(TERMS + 1, int(np.ceil(0.35 * runs))))


def choose_levels(by_size: dict[float, tuple[Trajectory, ...]]) -> Array:
    """Losses (ln nats), descending, evenly spaced over what any of the sizes may cover: at the ends of runs, too, where rounding must
    not decide."""
    ranges = [r for r in (_loss_range(t) for t in by_size.values()) if r is not None]
    if not ranges:
        return np.zeros(0)
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    if all(r[1] - r[0] < ROUNDING for r in ranges):
        return np.unique([r[0] for r in ranges])[::-1]
    return np.linspace(high, low, LEVELS)


def too_few_levels(levels: int) -> Refusal:
    """Where `levels` have an optimum."""
    return Refusal(
        RefusalReason.NO_COMMON_LOSS_RANGE,
        f"A law needs {FEWEST_LEVELS} loss levels with an optimum; these runs have {levels}. Evaluate them more often.",
        {"levels": levels},
    )


def _loss_range(trajectories: tuple[Trajectory, ...]) -> tuple[float, float] | None:
    """(low, high) ln L between the start of the best run and the end of the last run needed."""
    usable = [t for t in trajectories if t.usable]
    if len(usable) < 3:
        return None
    starts = np.sort([t.smooth[0] for t in usable])
    ends = np.sort([t.smooth[-1] for t in usable])
    low = float(ends[min(runs_needed(len(trajectories)), len(usable)) - 1])
    high = float(np.median(starts))
    return (low, high) if high >= low - ROUNDING else None


def _covers(trajectories: tuple[Trajectory, ...], log_tokens: Array, level: float) -> bool:
    """Whether enough runs reach a level, none of the best having started below it."""
    reached = np.isfinite(log_tokens)
    if reached.sum() < min(3, len(reached)) or reached.sum() < 0.75 * runs_needed(len(reached)):
        return False
    below = [
        t.log_tokens[0]
        for t, found in zip(trajectories, reached, strict=True)
        if not found and t.usable and t.smooth[0] < level - ROUNDING
    ]
    # A run that starts below the level, and late, is a gap in the table and not a better run.
    return not below or min(below) > float(np.nanmin(log_tokens)) + ROUNDING


def read_size(params: float, trajectories: tuple[Trajectory, ...], levels: Array) -> Size:
    """Tokens of every run of one size to every level."""
    found = [crossings(t, levels) for t in trajectories]
    log_tokens = np.array([c.log_tokens for c in found]).reshape(len(found), -1)
    covered = [
        _covers(trajectories, log_tokens[:, k], float(level)) for k, level in enumerate(levels)
    ]
    return Size(
        params=params,
        flops_per_token=float(np.median([t.flops_per_token for t in trajectories])),
        trajectories=trajectories,
        log_tokens=log_tokens,
        slopes=np.array([c.slope for c in found]).reshape(len(found), -1),
        crossings=tuple(found),
        gains=np.array([(c.weights**2).sum(axis=1) for c in found]),
        covered=np.array(covered, dtype=bool),
    )


@dataclass(frozen=True)
class Crossings:
    """Where one trajectory reaches each of K losses."""

    log_tokens: Array
    """(K,) NaN where not reached or reached before the trajectory's first evaluation."""
    slope: Array
    """(K,) dlnL/dlnD there, negative."""
    trajectory: Trajectory
    left: Indices
    """(K,) the evaluations that each is between, …"""
    right: Indices
    share: Array
    """… and where."""

    @property
    def weights(self) -> Array:
        """(K, n) how an error of each ln L moves the smoothed ln L at the crossing; without meaning where there is none."""
        rows = self.trajectory.smoother
        if not len(rows):
            return np.zeros((len(self.left), 0))
        share = self.share[:, None]
        return np.asarray((1.0 - share) * rows[self.left] + share * rows[self.right], dtype=float)


def crossings(trajectory: Trajectory, log_losses: Array) -> Crossings:
    """The tokens at which the smoothed trajectory reaches each loss (ln nats)."""
    keep = _strictly_decreasing(trajectory.smooth)
    if len(keep) < 2:
        return _single(trajectory, log_losses)
    x, y = trajectory.log_tokens[keep], trajectory.smooth[keep]
    inside = (log_losses <= y[0] + ROUNDING) & (log_losses >= y[-1] - ROUNDING)
    wanted = -np.clip(log_losses, y[-1], y[0])
    # Few points far apart need a curve between them; many do not.
    between = _curve(-y, x, wanted) if len(x) < DENSE else np.interp(wanted, -y, x)
    log_tokens = np.where(inside, between, np.nan)
    filled = np.where(inside, between, x[0])
    right = np.clip(np.searchsorted(x, filled), 1, len(x) - 1)
    left = right - 1
    gap = x[right] - x[left]
    t = np.clip((filled - x[left]) / gap, 0.0, 1.0)
    slope = np.where(inside, np.minimum((y[right] - y[left]) / gap, -1e-6), np.nan)
    return Crossings(log_tokens, slope, trajectory, keep[left], keep[right], t)


def _single(trajectory: Trajectory, log_losses: Array) -> Crossings:
    """One evaluation gives the tokens to its own loss only, as in a table of tokens to a target; none gives nothing."""
    first = trajectory.smooth[0] if trajectory.usable else np.nan
    on = np.abs(log_losses - first) < ROUNDING
    log_tokens = np.full(len(log_losses), np.nan)
    log_tokens[on] = trajectory.log_tokens[:1]
    slope, share = np.where(on, -USUAL_SLOPE, np.nan), np.zeros(len(log_losses))
    at = share.astype(np.intp)
    return Crossings(log_tokens, slope, trajectory, at, at, share)


def _curve(x: Array, y: Array, wanted: Array) -> Array:
    """Monotone cubic interpolation."""
    # Not above: scipy.interpolate takes longer to import than a prediction takes in all.
    from scipy.interpolate import PchipInterpolator

    return np.asarray(PchipInterpolator(x, y)(wanted))


def _strictly_decreasing(smooth: Array) -> Indices:
    if len(smooth) == 0:
        return np.zeros(0, dtype=np.intp)
    keep = np.concatenate([[True], np.diff(smooth) < -ROUNDING])
    return np.flatnonzero(keep)
