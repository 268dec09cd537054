"""Fits L(x) = L0 + alpha x^-gamma by variable projection over L0, to all bootstrap draws at once.

The losses are exact and the x that reaches them is measured, so ln x is what carries the error:
ln x = (ln alpha - ln(L - L0)) / gamma is a straight line for every L0, and one dimension is left to search.
"""

from __future__ import annotations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.curves import LossCurve

GRID = 160
LARGEST_EXPONENT = 5.0
"""No loss falls faster than x^-5; steeper draws are noise."""
SMALLEST_SPREAD = 1e-18
HIGHEST_FLOOR = 0.998
"""Largest L0 searched, as a share of the lowest loss."""


def fit_curves(
    losses: Array,
    log_x: Array,
    weights: Array,
    fixed: float | None,
    highest: float = HIGHEST_FLOOR,
) -> LossCurve:
    """One curve per draw: `log_x` (draws, K) at `losses` (K,).

    L0 is fixed or searched from 0 to `highest` times the lowest loss.
    """
    lowest = float(losses.min())
    candidates = np.array([fixed]) if fixed is not None else _grid(lowest, highest)
    log_alpha, gamma, cost = _project(losses, log_x, weights, candidates)
    best = np.argmin(cost, axis=0)
    if fixed is None:
        candidates = _refined(candidates, best)
        log_alpha, gamma, cost = _project(losses, log_x, weights, candidates)
        best = np.argmin(cost, axis=0)
    rows = np.arange(log_x.shape[0])
    irreducible = np.broadcast_to(_column(candidates), cost.shape)[best, rows]
    return LossCurve(irreducible, log_alpha[best, rows], gamma[best, rows])


def _grid(lowest: float, highest: float) -> Array:
    """From 0 to just under the lowest loss, denser towards it."""
    return lowest * (1.0 - np.geomspace(1.0, 1.0 - highest, GRID))


def _refined(grid: Array, best: Array) -> Array:
    """(fine, draws) candidates between the neighbours of each draw's best."""
    low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, len(grid) - 1)]
    return np.asarray(low + (high - low) * np.linspace(0.0, 1.0, 41)[:, None], dtype=float)


def _column(candidates: Array) -> Array:
    return candidates[:, None] if candidates.ndim == 1 else candidates


def _project(
    losses: Array, log_x: Array, weights: Array, candidates: Array
) -> tuple[Array, Array, Array]:
    """The straight line in (ln(L - L0), ln x) for every candidate and draw.

    (ln alpha, gamma, weighted mean square of ln x), each (candidates, draws).
    """
    x = np.log(losses - _column(candidates)[..., None])  # (candidates, 1 or draws, K)
    w = weights / weights.sum()
    dx = x - (x * w).sum(-1, keepdims=True)
    mean_x = (x * w).sum(-1)
    mean_y = log_x @ w
    dy = log_x - mean_y[:, None]
    spread = np.maximum((dx**2 * w).sum(-1), SMALLEST_SPREAD)
    slope = np.minimum((dx * dy * w).sum(-1) / spread, -1.0 / LARGEST_EXPONENT)
    cost = ((dy - slope[..., None] * dx) ** 2 * w).sum(-1)
    gamma = -1.0 / slope
    log_alpha = gamma * (mean_y - slope * mean_x)
    return np.asarray(log_alpha), gamma, cost
