"""L(C) = L0 + alpha C^-gamma along the frontier, by variable projection over L0.

The levels are exact and the compute to reach them is measured, so ln C is what carries the error:
ln C = (ln alpha - ln(L - L0)) / gamma is a straight line for every L0, and one dimension is left to search.
All bootstrap draws are searched at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoloss.laws.bootstrap import interval, with_misfit
from isoloss.laws.model import Array, FitOptions, Refusal, RefusalReason, Status
from isoloss.laws.results import LossComputeLaw

FEWEST_POINTS = 4
GRID = 160
LARGEST_EXPONENT = 5.0
"""No loss falls faster than C^-5; steeper draws are noise."""
SMALLEST_SPREAD = 1e-18
HIGHEST_FLOOR = 0.998
"""Largest L0 searched, as a share of the lowest loss."""


@dataclass(frozen=True)
class CurveFit:
    """Per draw the coefficients and the weighted sum of squared errors of ln C."""

    irreducible: Array
    log_alpha: Array
    gamma: Array
    cost: Array


def fit_curves(
    losses: Array,
    log_flops: Array,
    weights: Array,
    fixed: float | None,
    highest: float = HIGHEST_FLOOR,
) -> CurveFit:
    """Fit every draw: `log_flops` (draws, K) at `losses` (K,).

    L0 is fixed or searched from 0 to `highest` times the lowest loss.
    """
    lowest = float(losses.min())
    candidates = np.array([fixed]) if fixed is not None else _grid(lowest, highest)
    curves = _project(losses, log_flops, weights, candidates)
    best = np.argmin(curves.cost, axis=0)
    if fixed is None:
        candidates = _refined(candidates, best)
        curves = _project(losses, log_flops, weights, candidates)
        best = np.argmin(curves.cost, axis=0)
    rows = np.arange(log_flops.shape[0])
    irreducible = np.broadcast_to(_column(candidates), curves.cost.shape)[best, rows]
    return CurveFit(
        irreducible,
        curves.log_alpha[best, rows],
        curves.gamma[best, rows],
        curves.cost[best, rows],
    )


def _grid(lowest: float, highest: float) -> Array:
    """From 0 to just under the lowest loss, denser towards it."""
    return lowest * (1.0 - np.geomspace(1.0, 1.0 - highest, GRID))


def _refined(grid: Array, best: Array) -> Array:
    """(fine, draws) candidates between the neighbours of each draw's best."""
    low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, len(grid) - 1)]
    return np.asarray(low + (high - low) * np.linspace(0.0, 1.0, 41)[:, None], dtype=float)


def _column(candidates: Array) -> Array:
    return candidates[:, None] if candidates.ndim == 1 else candidates


def _project(losses: Array, log_flops: Array, weights: Array, candidates: Array) -> CurveFit:
    """The straight line in (ln(L - L0), ln C) for every candidate and draw: (candidates, draws)."""
    x = np.log(losses - _column(candidates)[..., None])  # (candidates, 1 or draws, K)
    w = weights / weights.sum()
    dx = x - (x * w).sum(-1, keepdims=True)
    mean_x = (x * w).sum(-1)
    mean_y = log_flops @ w
    dy = log_flops - mean_y[:, None]
    spread = np.maximum((dx**2 * w).sum(-1), SMALLEST_SPREAD)
    slope = np.minimum((dx * dy * w).sum(-1) / spread, -1.0 / LARGEST_EXPONENT)
    cost = ((dy - slope[..., None] * dx) ** 2 * w).sum(-1)
    gamma = -1.0 / slope
    log_alpha = gamma * (mean_y - slope * mean_x)
    return CurveFit(_column(candidates), np.asarray(log_alpha), gamma, cost)


def fit_loss_compute(
    losses: Array, log_flops: Array, options: FitOptions, fitted: Status
) -> tuple[LossComputeLaw, Array | None]:
    """The law from the frontier's draws (draw 0 the estimate) and its coefficients' draws (n, 3).

    `losses` (K,) in nats per token, `log_flops` (draws, K). Refuses too few levels, a fixed L0 above
    a loss seen, and a loss that does not fall with compute.
    """
    refusal = _refuse(losses, log_flops, options)
    if refusal is not None:
        return LossComputeLaw("refused", refusal=refusal), None
    weights = 1.0 / (log_flops.var(axis=0) + 1e-4)
    first = fit_curves(losses, log_flops[:1], weights, options.irreducible_loss)
    along = (first.log_alpha - np.log(losses - first.irreducible)) / first.gamma
    rng = np.random.default_rng([options.seed, 6])
    log_flops = with_misfit(log_flops, along, 3, rng)
    fit = fit_curves(losses, log_flops, weights, options.irreducible_loss)
    without = fit_curves(losses, log_flops[:1], weights, 0.0)
    level = options.interval
    intervals = [interval(float(a[0]), a, level) for a in (fit.irreducible, fit.gamma)]
    with np.errstate(over="ignore"):
        alpha = interval(float(np.exp(fit.log_alpha[0])), np.exp(fit.log_alpha), level)
    predicted = fit.irreducible[0] + np.exp(fit.log_alpha[0] - fit.gamma[0] * log_flops[0])
    flat = np.exp(without.log_alpha[0] - without.gamma[0] * log_flops[0])
    spread = ((losses - losses.mean()) ** 2).sum()
    wide = intervals[0].high - intervals[0].low > 0.5 * losses.min()
    at_zero = options.irreducible_loss is None and fit.irreducible[0] <= 0.0
    law = LossComputeLaw(
        status=fitted,
        irreducible_loss=float(fit.irreducible[0]),
        log_alpha=float(fit.log_alpha[0]),
        gamma=float(fit.gamma[0]),
        irreducible_loss_fixed=options.irreducible_loss is not None,
        irreducible_loss_identified=not (wide or at_zero),
        rmse=float(np.sqrt(np.mean((losses - predicted) ** 2))),
        r_squared=float(1.0 - ((losses - predicted) ** 2).sum() / spread),
        points=len(losses),
        irreducible_loss_interval=intervals[0],
        alpha_interval=alpha,
        gamma_interval=intervals[1],
        rmse_without_irreducible_loss=float(np.sqrt(np.mean((losses - flat) ** 2))),
    )
    return law, np.stack([fit.irreducible, fit.log_alpha, fit.gamma], axis=1)


def _refuse(losses: Array, log_flops: Array, options: FitOptions) -> Refusal | None:
    if len(losses) < FEWEST_POINTS:
        return Refusal(
            RefusalReason.NO_COMMON_LOSS_RANGE,
            f"Only {len(losses)} loss levels have an optimum; the loss-compute law needs "
            f"{FEWEST_POINTS}.",
            {"levels": len(losses)},
        )
    fixed = options.irreducible_loss
    if fixed is not None and fixed >= losses.min():
        return Refusal(
            RefusalReason.INITIAL_LOSS_BELOW_IRREDUCIBLE,
            f"The irreducible loss was fixed at {fixed:.4g}, but a run reached {losses.min():.4g}.",
            {"irreducible_loss": fixed, "lowest_loss": float(losses.min())},
        )
    slope = np.polyfit(np.log(losses), log_flops[0], 1)[0]
    if slope >= 0:
        return Refusal(
            RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE,
            "The loss does not fall with compute along the frontier.",
            {"slope": float(slope)},
        )
    return None
