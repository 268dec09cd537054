"""Optima per size and level with their bootstrap draws, and the frontier of least compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isoloss.laws.bootstrap import Noise, draw_log_tokens
from isoloss.laws.iso_loss import Parabola, Size, fit_parabola, judge_vertex, vertex_of
from isoloss.laws.model import Array, Refusal, RefusalReason, Status
from isoloss.laws.results import Contour, Optimum

CLOSE_CALL = 0.3
"""ln C by which a size without data at a level may at best undercut the winner there."""


@dataclass(frozen=True)
class SizeOptima:
    """One size's optimum at every level, as draws; draw 0 is the estimate."""

    size: Size
    parabolas: tuple[Parabola | Refusal | None, ...]
    """None: the size does not cover the level."""
    refusals: tuple[Refusal | None, ...]
    log_rate: Array
    """(draws, levels) NaN where there is no optimum."""
    log_batch: Array
    log_tokens: Array

    @property
    def found(self) -> Array:
        """(levels,) whether there is an optimum."""
        return np.isfinite(self.log_tokens[0])

    @property
    def log_flops(self) -> Array:
        """(draws, levels)."""
        return np.asarray(self.log_tokens + np.log(self.size.flops_per_token), dtype=float)


def fit_parabolas(size: Size) -> tuple[Parabola | Refusal | None, ...]:
    """One parabola per covered level."""
    return tuple(
        fit_parabola(size, level) if covered else None
        for level, covered in enumerate(size.covered)
    )


def find_optima(
    size: Size,
    parabolas: tuple[Parabola | Refusal | None, ...],
    noise: Noise,
    draws: int,
    rng: np.random.Generator,
) -> SizeOptima:
    """The vertex of each parabola under the noise, refused where it is not safely a minimum."""
    errors = draw_log_tokens(size, noise, draws, rng)
    levels = len(parabolas)
    out = np.full((3, draws, levels), np.nan)
    refusals: list[Refusal | None] = []
    for level, parabola in enumerate(parabolas):
        if not isinstance(parabola, Parabola):
            refusals.append(parabola)
            continue
        values = parabola.values[parabola.points] + errors[:, parabola.points, level]
        vertices, log_tokens, convex = vertex_of(values @ parabola.solver.T, parabola.centre)
        refusal = judge_vertex(size, parabola, vertices, convex)
        refusals.append(refusal)
        if refusal is None:
            out[:, :, level] = np.where(
                convex, np.stack([vertices[:, 0], vertices[:, 1], log_tokens]), np.nan
            )
    return SizeOptima(size, parabolas, tuple(refusals), out[0], out[1], out[2])


@dataclass(frozen=True)
class Frontier:
    """The optimum across sizes per level, as draws; draw 0 is the estimate."""

    log_loss: Array
    """(levels,)"""
    log_params: Array
    """(draws, levels) NaN where refused."""
    log_rate: Array
    log_batch: Array
    log_tokens: Array
    log_flops: Array
    refusals: tuple[Refusal | None, ...]

    @property
    def found(self) -> Array:
        """(levels,) whether there is an optimum."""
        return np.isfinite(self.log_flops[0])


def least_compute(sizes: Sequence[SizeOptima], log_loss: Array) -> Frontier:
    """Per level the size of least compute; between three sizes, the vertex of ln C over ln N."""
    draws, levels = sizes[0].log_tokens.shape
    out = np.full((5, draws, levels), np.nan)
    refusals: list[Refusal | None] = []
    for level in range(levels):
        candidates = [s for s in sizes if s.found[level]]
        refusal = _unproven(sizes, candidates, log_loss, level)
        refusals.append(refusal)
        if refusal is None:
            out[:, :, level] = _cheapest(candidates, level)
    return Frontier(log_loss, out[0], out[1], out[2], out[3], out[4], tuple(refusals))


def _cheapest(candidates: Sequence[SizeOptima], level: int) -> Array:
    """(5, draws): ln N, ln LR, ln B, ln D, ln C."""
    log_params = np.log([c.size.params for c in candidates])
    columns = np.stack(
        [
            [
                c.log_rate[:, level],
                c.log_batch[:, level],
                c.log_tokens[:, level],
                c.log_flops[:, level],
            ]
            for c in candidates
        ]
    )  # (sizes, 4, draws)
    best = int(np.argmin(columns[:, 3, 0]))
    if 0 < best < len(candidates) - 1:
        return _between(log_params[best - 1 : best + 2], columns[best - 1 : best + 2])
    draws = columns.shape[2]
    return np.concatenate([np.full((1, draws), log_params[best]), columns[best]])


def _between(n: Array, columns: Array) -> Array:
    """The minimum of the parabola of ln C through three sizes, and the rest interpolated there."""
    cost = columns[:, 3]
    left = (cost[1] - cost[0]) / (n[1] - n[0])
    right = (cost[2] - cost[1]) / (n[2] - n[1])
    curvature = (right - left) / (n[2] - n[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        vertex = 0.5 * (n[0] + n[1]) - left / (2.0 * curvature)
    vertex = np.where(curvature > 0, np.clip(vertex, n[0], n[2]), n[np.argmin(cost, axis=0)])
    basis = np.stack(
        [
            (vertex - n[(i + 1) % 3])
            * (vertex - n[(i + 2) % 3])
            / ((n[i] - n[(i + 1) % 3]) * (n[i] - n[(i + 2) % 3]))
            for i in range(3)
        ]
    )
    return np.concatenate([vertex[None], np.einsum("sd,scd->cd", basis, columns)])


def _unproven(
    sizes: Sequence[SizeOptima], candidates: Sequence[SizeOptima], log_loss: Array, level: int
) -> Refusal | None:
    """Refuse a level whose cheapest size may be one without an optimum there."""
    if not candidates:
        reasons = [s.refusals[level] for s in sizes if s.refusals[level] is not None]
        return reasons[-1] if reasons else _not_covered(log_loss, level)
    winner = min(float(c.log_flops[0, level]) for c in candidates)
    for other in sizes:
        if other.found[level]:
            continue
        refusal = other.refusals[level]
        if refusal is not None and _best_seen(other, level) < winner:
            return refusal
        if refusal is None and _extrapolated(other, log_loss, level) < winner - CLOSE_CALL:
            return _not_covered(log_loss, level, other.size.params)
    return None


def _best_seen(optima: SizeOptima, level: int) -> float:
    reached = optima.size.log_tokens[:, level]
    reached = reached[np.isfinite(reached)]
    if len(reached) == 0:
        return np.inf
    return float(reached.min() + np.log(optima.size.flops_per_token))


def _extrapolated(optima: SizeOptima, log_loss: Array, level: int) -> float:
    """A straight line through the two nearest optima: below the true, convex, ln C(ln L)."""
    found = np.flatnonzero(optima.found)
    if len(found) < 2:
        return np.inf
    nearest = found[np.argsort(np.abs(found - level))[:2]]
    x, y = log_loss[nearest], optima.log_flops[0, nearest]
    return float(y[0] + (log_loss[level] - x[0]) * (y[1] - y[0]) / (x[1] - x[0]))


def _not_covered(log_loss: Array, level: int, params: float | None = None) -> Refusal:
    loss = float(np.exp(log_loss[level]))
    who = (
        "no size has"
        if params is None
        else f"{params:.3g} parameters, perhaps the cheapest, have no"
    )
    return Refusal(
        RefusalReason.NO_COMMON_LOSS_RANGE,
        f"At loss {loss:.4g} {who} enough runs that reach it. Train for more tokens.",
        {"loss": loss} | ({} if params is None else {"params": params}),
    )


def size_optima_results(optima: SizeOptima, log_loss: Array, fitted: Status) -> list[Optimum]:
    """The public records of one size."""
    records = []
    for level, parabola in enumerate(optima.parabolas):
        if parabola is None:
            continue
        stack = np.stack(
            [a[:, level] for a in (optima.log_rate, optima.log_batch, optima.log_tokens)]
        )
        records.append(
            _record(
                float(np.exp(log_loss[level])),
                optima.size.params,
                stack,
                optima.log_flops[0, level],
                optima.refusals[level],
                fitted,
            )
        )
    return records


def frontier_results(frontier: Frontier, fitted: Status) -> tuple[Optimum, ...]:
    """The public records across sizes."""
    records = []
    for level, refusal in enumerate(frontier.refusals):
        stack = np.stack(
            [a[:, level] for a in (frontier.log_rate, frontier.log_batch, frontier.log_tokens)]
        )
        params = None if refusal else float(np.exp(frontier.log_params[0, level]))
        records.append(
            _record(
                float(np.exp(frontier.log_loss[level])),
                params,
                stack,
                frontier.log_flops[0, level],
                refusal,
                fitted,
            )
        )
    return tuple(records)


def _record(
    loss: float,
    params: float | None,
    stack: Array,
    log_flops: float,
    refusal: Refusal | None,
    fitted: Status,
) -> Optimum:
    if refusal is not None:
        return Optimum(loss, params, "refused", refusal=refusal)
    draws = stack[:, np.isfinite(stack).all(axis=0)]
    covariance = np.cov(draws) if draws.shape[1] > 2 else np.zeros((3, 3))
    errors = np.sqrt(np.diag(covariance))
    names = ("learning_rate", "batch_size", "tokens")
    return Optimum(
        loss=loss,
        params=params,
        status=fitted,
        learning_rate=float(np.exp(stack[0, 0])),
        batch_size=float(np.exp(stack[1, 0])),
        tokens=float(np.exp(stack[2, 0])),
        flops=float(np.exp(log_flops)),
        standard_errors={name: float(e) for name, e in zip(names, errors, strict=True)},
        covariance=covariance[:2, :2],
    )


def contours_of(optima: SizeOptima, log_loss: Array) -> list[Contour]:
    """The iso-loss points and parabolas of one size, for the report."""
    contours = []
    for level, parabola in enumerate(optima.parabolas):
        if not isinstance(parabola, Parabola):
            continue
        shown = np.flatnonzero(np.isfinite(parabola.values))
        weights = np.zeros(len(parabola.values))
        weights[parabola.points] = parabola.weights
        runs = optima.size.trajectories
        contours.append(
            Contour(
                loss=float(np.exp(log_loss[level])),
                params=optima.size.params,
                run_names=tuple(runs[i].name for i in shown),
                learning_rates=np.array([runs[i].learning_rate for i in shown]),
                batch_sizes=np.array([runs[i].batch_size for i in shown]),
                log_tokens=parabola.values[shown],
                bounds=tuple(bool(parabola.bound[i]) for i in shown),
                weights=weights[shown],
                centre=parabola.centre,
                coefficients=parabola.coefficients,
                residual_rms=float(
                    np.sqrt(np.average(parabola.residuals**2, weights=parabola.weights))
                ),
            )
        )
    return contours
