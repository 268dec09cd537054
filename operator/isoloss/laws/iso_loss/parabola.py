"""The iso-loss surface of one size at one loss: tokens over (LR, B), its vertex, or why it has none.

ln D is fitted by a quadratic in (ln LR, ln B). Points far above the minimum weigh less, because the
true surface is a parabola only near its vertex; runs that never reached the loss are bounds, used
where the parabola would otherwise contradict them.
"""

from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import Array, Flags, Indices
from isoloss.laws.iso_loss.edges import too_few
from isoloss.laws.iso_loss.levels import Size
from isoloss.laws.model import Refusal
from isoloss.laws.quadratic import Quadratic, fit_quadratic

NEAR = 0.05
"""Excess ln D over the best point at which one counts half: there the parabola errs by as much as ln D does at the best points."""


@dataclass(frozen=True)
class Parabola:
    """A quadratic through the runs of a level."""

    points: Indices
    """The runs used."""
    values: Array
    """ln D per run; bounds where `bound`."""
    bound: Flags
    weights: Array
    fit: Quadratic
    """Through the points."""
    freedom: float
    """Weighted degrees of freedom left."""

    @property
    def reached(self) -> Flags:
        """(runs,) the runs used that are no bounds."""
        flags = np.zeros(len(self.values), dtype=bool)
        flags[self.points] = ~self.bound[self.points]
        return flags


def fit_parabola(size: Size, level: int) -> Parabola | Refusal:
    """The quadratic through the runs of `size` at a level, or why there is none."""
    x, y = size.x, size.y
    z, bound = _values_and_bounds(size, level)
    reached = np.isfinite(z) & ~bound
    refusal = too_few(size, z, reached)
    if refusal is not None:
        return refusal
    active = reached.copy()
    for _ in range(6):
        parabola = _solve(x, y, z, bound, active)
        if not bound.any():
            break
        outside = bound & np.isfinite(z) & (parabola.fit.at(x, y) < z)
        if not (outside & ~active).any():
            break
        active = active | outside
    return parabola


def _values_and_bounds(size: Size, level: int) -> tuple[Array, Flags]:
    """ln D where reached; a lower bound where the run ended or diverged above the level."""
    z = size.log_tokens[:, level].copy()
    missing = ~np.isfinite(z)
    if not missing.any():
        return z, missing
    highest = np.nanmax(z) if (~missing).any() else np.nan
    loss = _level_loss(size, level)
    for i in np.flatnonzero(missing):
        run = size.trajectories[i]
        if run.diverged:
            z[i] = max(run.end, highest) if np.isfinite(run.end) else highest
        elif run.usable and len(run.log_tokens) > 1 and run.smooth[-1] > loss:
            z[i] = run.end
    return z, missing & np.isfinite(z)


def _level_loss(size: Size, level: int) -> float:
    """ln L of a level, from any run that reached it."""
    for i in np.flatnonzero(np.isfinite(size.log_tokens[:, level])):
        run = size.trajectories[i]
        return float(np.interp(size.log_tokens[i, level], run.log_tokens, run.smooth))
    return -np.inf


def _solve(x: Array, y: Array, z: Array, bound: Flags, active: Flags) -> Parabola:
    points = np.flatnonzero(active)
    excess = z[points] - z[points[~bound[points]]].min()
    weights = 1.0 / (1.0 + (excess / NEAR) ** 2)
    fit = fit_quadratic(x[points], y[points], z[points], weights)
    return Parabola(
        points=points,
        values=z,
        bound=bound,
        weights=weights,
        fit=fit,
        freedom=float((weights * np.clip(1.0 - fit.leverage, 0.0, None)).sum()),
    )
