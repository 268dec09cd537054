"""Fits L(x) = L0 + alpha x^-gamma by variable projection over L0, to all bootstrap draws at once.

The losses are exact and the x that reaches them is measured, so ln x is what carries the error:
ln x = (ln alpha - ln(L - L0)) / gamma is a straight line for every L0, and one dimension is left to search.
"""

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array, Indices
from isoloss.laws.curves import LossCurve

GRID = 160
LARGEST_EXPONENT = 5.0
"""No loss falls faster than x^-5; steeper draws are noise."""
HIGHEST_FLOOR = 0.998
"""Largest L0 searched, as a share of the lowest loss."""
AT_ONCE = 2**16
"""Candidates times draws times losses that are looked at together: more need more memory, and no less time."""


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
    draws = len(log_x)
    irreducible = np.full(draws, 0.0 if fixed is None else fixed)
    if fixed is None:
        grid = _grid(float(losses.min()), highest)
        fine = _refined(grid, _cheapest(losses, log_x, weights, grid[:, None]))
        irreducible = fine[_cheapest(losses, log_x, weights, fine), np.arange(draws)]
    log_alpha, gamma, _ = _project(losses, log_x, weights, irreducible[None])
    return LossCurve(irreducible, log_alpha[0], gamma[0])


def _grid(lowest: float, highest: float) -> Array:
    """From 0 to just under the lowest loss, denser towards it."""
    return lowest * (1.0 - np.geomspace(1.0, 1.0 - highest, GRID))


def _refined(grid: Array, best: Indices) -> Array:
    """(fine, draws) candidates between the neighbours of each draw's best."""
    low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, len(grid) - 1)]
    return np.asarray(low + (high - low) * np.linspace(0.0, 1.0, 41)[:, None], dtype=float)


def _cheapest(losses: Array, log_x: Array, weights: Array, candidates: Array) -> Indices:
    """(draws,) which of the candidates, (candidates, 1 or draws) L0, goes best with each draw."""
    step = max(1, AT_ONCE // log_x.size)
    costs = [
        _project(losses, log_x, weights, candidates[at : at + step])[2]
        for at in range(0, len(candidates), step)
    ]
    return np.asarray(np.argmin(np.concatenate(costs), axis=0), dtype=np.intp)


def _project(
    losses: Array, log_x: Array, weights: Array, candidates: Array
) -> tuple[Array, Array, Array]:
    """The straight line in (ln(L - L0), ln x) for every candidate and draw.

    (ln alpha, gamma, weighted mean square of ln x), each (candidates, draws). `candidates` (candidates, 1 or draws).
    """
    x = np.log(losses - candidates[..., None])  # (candidates, 1 or draws, K)
    w = weights / weights.sum()
    mean_x, mean_y = x @ w, log_x @ w
    dx, dy = x - mean_x[..., None], log_x - mean_y[:, None]
    of_x, of_both = np.vecdot(dx * w, dx), np.vecdot(dx * w, dy)
    slope = np.minimum(of_both / np.maximum(of_x, ROUNDING**2), -1.0 / LARGEST_EXPONENT)
    cost = np.vecdot(dy * w, dy) + slope * (slope * of_x - 2.0 * of_both)
    gamma = -1.0 / slope
    log_alpha = gamma * (mean_y - slope * mean_x)
    return np.asarray(log_alpha), gamma, cost
