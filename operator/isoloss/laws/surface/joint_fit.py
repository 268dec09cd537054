"""The joint second estimate: one convex surface of loss over (LR, B) for every (N, D), fitted at once.

Within a cell (one N at one D) the wasted ln D is c + x'Hx/2 + x'(p + n P_n + d P_d) with x = (ln LR, ln B),
n = ln N, d = ln D: linear in its coefficients, with a free level c per cell. Cells whose own optimum
lies outside the grid still tell the slope there, and every cell shares the curvature H.
The optimum is a log-linear law of N and D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from isoloss.laws.bootstrap import correlated
from isoloss.laws.data.cells import Cell
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.edges import DOUBTFUL, MOSTLY_CONVEX
from isoloss.laws.model import Array, Flags, Indices, Refusal, RefusalReason, Status
from isoloss.laws.results import SurfaceLaw
from isoloss.laws.surface.form_error import (
    Residuals,
    Scatter,
    coefficient_covariance,
    scatter,
    scatter_freedom,
    window_error,
)

WINDOW = 0.5
"""Points that waste more than this much ln D against their cell's best count little."""
NARROW = 0.2
"""The window of a second fit, to see whether the valley is a parabola."""
WINDOW_DRAWS = 40
SHAPE = 9
"""Coefficients besides the cells' levels."""
PER_QUANTITY = 3
"""Coefficients of the law of one hyperparameter: constant, ln N, ln D."""
NARROWEST_SPREAD = 0.05
"""Root mean square of ln N, ln D across their common line, below which they are one variable."""


@dataclass(frozen=True)
class SurfaceFit:
    """The linear problem solved, and its map for the bootstrap."""

    centre: Array
    """(4,): ln LR, ln B, ln N, ln D."""
    coefficients: Array
    """(9,): H entries (xx, xy, yy), then x (1, n, d), y (1, n, d)."""
    solver: Array
    """(9, points)."""
    narrow_solver: Array
    """(9, points), of the narrower window."""
    runs: Indices
    """(points,) trajectory behind each point."""
    residuals: Array
    weights: Array
    scale: Array
    """(points,) token slope of the point's cell."""
    unknowns: float
    """Coefficients that were fitted, the cells' levels included."""
    positions: Array
    """(points, 2): ln LR and ln B, centred."""
    cell: Indices
    """(points,)"""
    sizes: tuple[float, ...]
    """ln N per cell."""

    @property
    def hessian(self) -> Array:
        """(2, 2) of ln D over (ln LR, ln B)."""
        xx, xy, yy = self.coefficients[:3]
        return np.array([[xx, xy], [xy, yy]])

    @property
    def is_convex(self) -> bool:
        """Whether there is an optimum at all."""
        return bool(np.linalg.eigvalsh(self.hessian)[0] > 1e-9)

    @cached_property
    def scatter(self) -> Scatter:
        """How far cells and sizes stray from the law."""
        return scatter(self.left_over, self.sizes, self.hessian, PER_QUANTITY)

    @cached_property
    def left_over(self) -> Residuals:
        """The residuals, cell by cell."""
        variance = float((self.weights * self.residuals**2).sum())
        variance /= max(len(self.residuals) - self.unknowns, 1.0)
        own_runs = len(set(self.runs.tolist())) / len(self.runs)
        return Residuals(
            self.positions, self.cell, self.residuals, self.weights, variance, own_runs
        )

    @cached_property
    def law_covariance(self) -> Array:
        """(6, 6) of the optimum's law, ln LR then ln B, at the fitted curvature, which must be convex."""
        turn = np.zeros((2 * PER_QUANTITY, SHAPE))
        turn[:, SHAPE - 2 * PER_QUANTITY :] = np.kron(
            -np.linalg.inv(self.hessian), np.eye(PER_QUANTITY)
        )
        covariance = _noise_covariance(self)[0] + _scatter_covariance(self)
        return np.asarray(turn @ covariance @ turn.T, dtype=float)


def fit_surface(trajectories: Sequence[Trajectory], cells: Sequence[Cell]) -> SurfaceFit | Refusal:
    """Weighted least squares over all cells, or why it can not be."""
    refusal = _refuse_cells(cells)
    if refusal is not None:
        return refusal
    x, y, n, d, z, cell, runs, scale = _stack(trajectories, cells)
    best = np.array([np.min(z[cell == c]) for c in range(len(cells))])
    excess = z - best[cell]
    weights = _window(excess, WINDOW)
    centre = np.array([np.average(v, weights=weights) for v in (x, y, n, d)])
    x, y, n, d = x - centre[0], y - centre[1], n - centre[2], d - centre[3]
    columns = [0.5 * x**2, x * y, 0.5 * y**2, x, x * n, x * d, y, y * n, y * d]
    design = np.concatenate([np.stack(columns, axis=1), np.eye(len(cells))[cell]], axis=1)
    root = np.sqrt(weights)
    full = _solver(design, weights)
    narrow = _solver(design, _window(excess, NARROW))
    solution = full @ z
    return SurfaceFit(
        centre=centre,
        coefficients=solution[:SHAPE],
        solver=full[:SHAPE],
        narrow_solver=narrow[:SHAPE],
        runs=runs.astype(np.intp),
        residuals=z - design @ solution,
        weights=weights,
        scale=scale,
        unknowns=float(np.linalg.matrix_rank(design * root[:, None], tol=1e-8)),
        positions=np.stack([x, y], axis=1),
        cell=cell.astype(np.intp),
        sizes=tuple(c.log_params for c in cells),
    )


def _window(excess: Array, width: float) -> Array:
    """Weights of points by the ln D that they waste against their cell's best."""
    near = 1.0 / (1.0 + (excess / (0.3 * width)) ** 2)
    return np.where(excess < 3 * width, near, 1e-6)


def _solver(design: Array, weights: Array) -> Array:
    root = np.sqrt(weights)
    return np.asarray(np.linalg.pinv(design * root[:, None], rcond=1e-10) * root, dtype=float)


def _window_error(fit: SurfaceFit) -> Array:
    """(2,) of ln LR and ln B in mid-data: see form_error.window_error."""
    left_over = fit.left_over
    rng = np.random.default_rng(6)
    errors = rng.standard_normal((WINDOW_DRAWS + 1, len(fit.weights)))
    errors *= np.sqrt(left_over.variance / fit.weights)
    errors[0] = 0.0
    # A solver repeats the pooled fit's own values: only what is left over moves the coefficients.
    wide, convex = _in_mid_data(fit.coefficients + errors @ fit.solver.T, fit.centre)
    narrow, also = _in_mid_data(
        fit.coefficients + (fit.residuals + errors) @ fit.narrow_solver.T, fit.centre
    )
    good = convex & also
    if not good[0] or good.sum() < WINDOW_DRAWS // 2:
        return np.zeros(2)
    moved = (narrow - wide)[good]
    return window_error(moved[0], moved[1:] - moved[0])


def _in_mid_data(coefficients: Array, centre: Array) -> tuple[Array, Flags]:
    """(optimum (draws, 2) at the centre of ln N and ln D, convex (draws,))."""
    rate, batch, convex = optimum_coefficients(coefficients, centre)
    return np.stack([rate[:, 0], batch[:, 0]], axis=1), convex


def _refuse_cells(cells: Sequence[Cell]) -> Refusal | None:
    """Too few cells, or cells that can not tell a size from its tokens."""
    points = sum(len(c.runs) for c in cells)
    sizes = len({c.log_params for c in cells})
    if points < SHAPE + len(cells) + 1 or len(cells) < 3:
        return Refusal(
            RefusalReason.TOO_FEW_RUNS,
            f"{points} points in {len(cells)} (N, D) cells are too few for a joint surface.",
            {"points": points, "cells": len(cells)},
        )
    if sizes < 2:
        return Refusal(
            RefusalReason.TOO_FEW_SIZES,
            "One model size says nothing about others: a joint surface needs two.",
            {"sizes": sizes},
        )
    n_and_d = np.array([[c.log_params, c.log_tokens] for c in cells])
    spread = np.linalg.svd(n_and_d - n_and_d.mean(axis=0), compute_uv=False)[-1]
    if spread / np.sqrt(len(cells)) < NARROWEST_SPREAD:
        return Refusal(
            RefusalReason.TOO_FEW_EVALUATIONS,
            "Every size was evaluated at one ratio of tokens to parameters: what depends on the size "
            "can not be told from what depends on the tokens.",
            {"cells": len(cells), "spread": float(spread)},
        )
    return None


def _stack(trajectories: Sequence[Trajectory], cells: Sequence[Cell]) -> tuple[Array, ...]:
    cell = np.concatenate([np.full(len(c.runs), i) for i, c in enumerate(cells)])
    runs = np.concatenate([c.runs for c in cells])
    x = np.log([trajectories[i].learning_rate for i in runs])
    y = np.log([trajectories[i].batch_size for i in runs])
    scale = np.array([c.slope for c in cells])[cell]
    z = np.concatenate([c.waste for c in cells])
    n = np.array([c.log_params for c in cells])[cell]
    d = np.array([c.log_tokens for c in cells])[cell]
    return x, y, n, d, z, cell, runs, scale


def optimum_coefficients(coefficients: Array, centre: Array) -> tuple[Array, Array, Flags]:
    """(ln LR (..., 3), ln B (..., 3), convex (...,)) of surfaces (..., 9)."""
    h11, h12, h22 = coefficients[..., 0], coefficients[..., 1], coefficients[..., 2]
    determinant = h11 * h22 - h12**2
    convex = (h11 > 0) & (h22 > 0) & (determinant > 0)
    safe = np.where(convex, determinant, 1.0)[..., None]
    p, q = coefficients[..., 3:6], coefficients[..., 6:9]
    rate = -(h22[..., None] * p - h12[..., None] * q) / safe
    batch = -(h11[..., None] * q - h12[..., None] * p) / safe
    rate[..., 0] += centre[0]
    batch[..., 0] += centre[1]
    return rate, batch, convex


def draw_coefficients(fit: SurfaceFit, draws: int, rng: np.random.Generator) -> Array:
    """(draws, 9); draw 0 is the estimate. The cells' scatter about the law blurs it beside the noise."""
    noise, freedom = _noise_covariance(fit)
    errors = (
        correlated(noise, draws, rng) * np.sqrt(freedom / rng.chisquare(freedom, draws))[:, None]
    )
    known = scatter_freedom(len(set(fit.sizes)))
    blur = correlated(_scatter_covariance(fit), draws, rng)
    errors += blur * np.sqrt(known / rng.chisquare(known, draws))[:, None]
    errors[0] = 0.0
    return np.asarray(fit.coefficients + errors, dtype=float)


def _noise_covariance(fit: SurfaceFit) -> tuple[Array, float]:
    """((9, 9), its degrees of freedom). Points of one run share a part of their error."""
    root = np.sqrt(fit.weights)
    scaled = fit.residuals * root
    _, member = np.unique(fit.runs, return_inverse=True)
    count = int(member.max()) + 1
    total = float((scaled**2).sum() / max(len(scaled) - fit.unknowns, 1.0))
    sums = np.bincount(member, scaled, count)
    pairs = float((np.bincount(member, minlength=count) ** 2).sum() - len(scaled))
    shared = float((sums**2).sum() - (scaled**2).sum()) / pairs if pairs > 0 else 0.0
    # Nine coefficients and a level per size were fitted to the errors that whole runs share.
    freedom = max(float(count - SHAPE - len(set(fit.sizes))), 2.0)
    shared = min(max(shared * count / freedom, 0.0), total * count / freedom)
    total = max(total, shared)
    gain = fit.solver * np.sqrt(_variances(fit, total) / total)
    runs = np.zeros((SHAPE, count))
    np.add.at(runs.T, member, gain.T)
    return shared * runs @ runs.T + (total - shared) * gain @ gain.T, freedom


def _scatter_covariance(fit: SurfaceFit) -> Array:
    """(9, 9) what the cells' and sizes' scatter about the law does to its coefficients."""
    if not fit.is_convex:
        return np.zeros((SHAPE, SHAPE))
    return coefficient_covariance(fit.solver, fit.left_over, fit.sizes, fit.hessian, fit.scatter)


def _variances(fit: SurfaceFit, scaled: float) -> Array:
    """(points,) of ln D, from that of points scaled to weight 1.

    Weights fall with the distance from the optimum because the parabola errs there. Noise does not fall
    towards the optimum, though: no point is better known than those near it prove to be.
    """
    taken = len(fit.weights) - fit.unknowns
    near = float((fit.weights * fit.residuals**2).sum() / fit.weights.sum())
    near *= len(fit.weights) / max(taken, 1.0)
    return np.maximum(scaled / fit.weights, near)


def surface_law(
    fit: SurfaceFit,
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
    draws: Array,
    shift: Array,
    fitted: Status,
) -> tuple[SurfaceLaw, Array | None]:
    """The public record of the estimate and the draws (n, 6) of its optimum's coefficients.

    `shift` (6,) moves the estimate and every other draw: whether to shift is itself not certain.
    """
    rate, batch, convex = optimum_coefficients(draws, fit.centre)
    moved = np.where(np.arange(len(draws))[:, None] % 2 == 0, shift, 0.0)
    rate, batch = rate + moved[:, :PER_QUANTITY], batch + moved[:, PER_QUANTITY:]
    refusal = _judge(fit, trajectories, cells, rate, batch, convex)
    if refusal is not None:
        return SurfaceLaw("refused", refusal=refusal), None
    h = fit.coefficients
    per_param = [t.flops_per_token / t.params for t in trajectories]
    log_loss = np.average(np.concatenate([c.log_losses for c in cells]), weights=fit.weights)
    weighted = np.average((fit.residuals * fit.scale) ** 2, weights=fit.weights)
    law = SurfaceLaw(
        status=fitted,
        log_learning_rate=rate[0],
        log_batch_size=batch[0],
        log_params_centre=float(fit.centre[2]),
        log_tokens_centre=float(fit.centre[3]),
        curvature=np.array([[h[0], h[1]], [h[1], h[2]]]),
        residual_rms=float(np.sqrt(weighted) * np.exp(log_loss)),
        flops_per_token_per_param=float(np.median(per_param)),
        cells=len(cells),
        points=len(fit.runs),
        scatter=np.hypot(fit.scatter.total, _window_error(fit)),
    )
    return law, np.concatenate([rate, batch], axis=1)[convex]


def _judge(
    fit: SurfaceFit,
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
    rate: Array,
    batch: Array,
    convex: Flags,
) -> Refusal | None:
    """Refuse a surface without a minimum, or whose minima mostly lie outside the grids."""
    if not convex[0] or convex.mean() < MOSTLY_CONVEX:
        return Refusal(
            RefusalReason.SURFACE_NOT_CONVEX,
            "The joint surface has no minimum over learning rate and batch size that stands out "
            f"of the noise (convex in {convex.mean():.0%} of the bootstrap).",
            {"convex_share": float(convex.mean())},
        )
    for quantity, law, values in (
        ("learning_rate", rate[0], np.log([t.learning_rate for t in trajectories])),
        ("batch_size", batch[0], np.log([t.batch_size for t in trajectories])),
    ):
        sides = _sides(fit, trajectories, cells, law, values)
        above, below = float((sides > 0).mean()), float((sides < 0).mean())
        if max(above, below) > 0.5 or _sizes_inside(fit, sides) < 2:
            return _outside_refusal(quantity, values, above > below, max(above, below))
        found = (rate if quantity == "learning_rate" else batch)[convex, 0]
        above = float((found > values.max()).mean())
        below = float((found < values.min()).mean())
        if max(above, below) > DOUBTFUL:
            return _doubtful_refusal(quantity, values, above > below, max(above, below))
    return None


def _sides(
    fit: SurfaceFit,
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
    law: Array,
    values: Array,
) -> Array:
    """(cells,) 1 where the optimum lies above the lines that the size was tried on, -1 below, else 0."""
    params = np.log([t.params for t in trajectories])
    sides = np.zeros(len(cells))
    for i, cell in enumerate(cells):
        tried = values[np.abs(params - cell.log_params) < 1e-9]
        n, d = cell.log_params - fit.centre[2], cell.log_tokens - fit.centre[3]
        optimum = law[0] + law[1] * n + law[2] * d
        sides[i] = float(optimum > tried.max()) - float(optimum < tried.min())
    return sides


def _sizes_inside(fit: SurfaceFit, sides: Array) -> int:
    """Sizes whose optimum lies inside their grid in some cell: a trend over sizes needs two."""
    return len({size for size, side in zip(fit.sizes, sides, strict=True) if side == 0})


def _doubtful_refusal(quantity: str, values: Array, larger: bool, share: float) -> Refusal:
    known = _outside_refusal(quantity, values, larger, share)
    words = quantity.replace("_", " ")
    return replace(
        known,
        message=f"The best {words} on the joint surface is so poorly known that it lies beyond the grid's "
        f"edge, {known.figures['edge']:.4g}, in {share:.0%} of the bootstrap: extend the grid to "
        f"{known.figures['direction']} values, or lower the noise.",
    )


def _outside_refusal(quantity: str, values: Array, larger: bool, share: float) -> Refusal:
    edge = float(np.exp(values.max() if larger else values.min()))
    direction = "larger" if larger else "smaller"
    return Refusal(
        RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE
        if quantity == "learning_rate"
        else RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE,
        f"In {share:.0%} of the joint surface's cells the best {quantity.replace('_', ' ')} lies "
        f"beyond the grid's edge, {edge:.4g}: extend the grid to {direction} values.",
        {"edge": edge, "direction": direction, "quantity": quantity, "share": share},
    )
