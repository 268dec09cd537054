"""Search support: where the next points go when the optimum is on the edge, and which may stop early.

Pure functions of the results so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.bootstrap import evaluation_noise
from isoloss.laws.data.cells import best_curve
from isoloss.laws.data.trajectories import Trajectory, collect
from isoloss.laws.model import RefusalReason, Run
from isoloss.laws.results import Laws

FEWEST_SHARE = 0.3
"""Of the size's tokens, below which no run is pruned: ranks that early do not last."""
SAFE_DEVIATIONS = 3.0
"""Standard deviations from the extrapolated loss down to its bound."""
CURVE_ERROR = 0.004
"""Relative error of a loss extrapolated from 30 % of the tokens; falls to 0 at the end."""
FEWEST_EVALUATIONS = 6
EDGE_REASONS = {
    RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE,
    RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE,
}


@dataclass(frozen=True)
class GridPoint:
    """A point to train."""

    params: float
    batch_size: float
    """Sequences; a whole number."""
    learning_rate: float


@dataclass(frozen=True)
class GridExtension:
    """New points for one size, in the order in which to train them, and why."""

    params: float
    points: tuple[GridPoint, ...]
    reason: str


@dataclass(frozen=True)
class Prunable:
    """A running point that cannot become the optimum."""

    run: str
    reason: str
    tokens_saved: float
    expected_loss: float
    """Extrapolated to the size's tokens, nats per token."""
    loss_bound: float
    """The lowest it can be expected to reach."""
    error_risk: float
    """Probability that it would have beaten the leader after all."""


def extend_grid(laws: Laws, runs: Sequence[Run], max_points: int) -> tuple[GridExtension, ...]:
    """New grid lines for sizes whose optimum is on an edge, `max_points` points in all.

    One line per edge, one geometric step beyond the last value; of each new line the points nearest to
    the best run come first. The lowest losses count: early levels have other optima.
    """
    extensions = []
    left = max_points
    for params in sorted({run.params for run in runs}):
        refusals = [
            o.refusal
            for o in laws.optima
            if o.params == params and o.refusal is not None and o.refusal.reason in EDGE_REASONS
        ]
        fitted = [o.loss for o in laws.optima if o.params == params and o.refusal is None]
        lowest = min((o.loss for o in laws.optima if o.params == params), default=np.inf)
        if not refusals or (fitted and min(fitted) <= lowest):
            continue
        figures = refusals[-1].figures
        points = _new_line(
            params, runs, str(figures["quantity"]), figures["direction"] == "larger"
        )
        if points[:left]:
            extensions.append(GridExtension(params, points[:left], refusals[-1].message))
            left -= len(points[:left])
    return tuple(extensions)


def _new_line(
    params: float, runs: Sequence[Run], quantity: str, larger: bool
) -> tuple[GridPoint, ...]:
    own = [run for run in runs if run.params == params]
    values = np.unique([getattr(run, quantity) for run in own])
    step = values[-1] / values[-2] if larger else values[0] / values[1]
    value = float((values[-1] if larger else values[0]) * step)
    if quantity == "batch_size":
        value = float(max(round(value), 1))
    taken = {(run.batch_size, run.learning_rate) for run in own}
    best = min(own, key=_last_loss)
    across = "learning_rate" if quantity == "batch_size" else "batch_size"
    others = np.unique([getattr(run, across) for run in own])
    nearest = sorted(others, key=lambda v: abs(np.log(v / getattr(best, across))))
    points = [
        GridPoint(params, value, float(o))
        if quantity == "batch_size"
        else GridPoint(params, float(o), value)
        for o in nearest
    ]
    return tuple(p for p in points if (p.batch_size, p.learning_rate) not in taken)


def _last_loss(run: Run) -> float:
    finite = run.losses[np.isfinite(run.losses)]
    return float(finite[-1]) if len(finite) and not run.diverged else np.inf


def prunable(runs: Sequence[Run], target_tokens: dict[float, float]) -> tuple[Prunable, ...]:
    """Unfinished runs that may stop, by size; `target_tokens` maps params to the planned tokens.

    A run is prunable when it has seen 30 % of its tokens and the lower bound of its extrapolated loss is
    above the upper bound of the leader's, both at the planned end. The leader's neighbours at the
    next larger batch size never are: larger batches catch up late.
    """
    found: list[Prunable] = []
    trajectories = collect(runs).trajectories
    noise = evaluation_noise(trajectories)
    for params, end in sorted(target_tokens.items()):
        own = [t for t in trajectories if t.params == params]
        forecasts = [_forecast(t, float(np.log(end)), noise) for t in own]
        known = [(t, f) for t, f in zip(own, forecasts, strict=True) if f is not None]
        if len(known) < 2:
            continue
        leader, (best, best_error) = min(known, key=lambda pair: pair[1][0] + 2.0 * pair[1][1])
        protected = _larger_batch_neighbours(leader, own)
        for t, (loss, error) in known:
            if t is leader or t.finished or t.name in protected or not _seen_enough(t, end):
                continue
            deviation = float(np.hypot(error, best_error))
            if loss - best > SAFE_DEVIATIONS * deviation:
                found.append(_pruned(t, leader, end, loss, best, error, deviation))
    return tuple(found)


def _seen_enough(t: Trajectory, end: float) -> bool:
    return t.end >= float(np.log(FEWEST_SHARE * end)) and len(t.log_tokens) >= FEWEST_EVALUATIONS


def _forecast(t: Trajectory, log_end: float, noise: float) -> tuple[float, float] | None:
    """(ln L at the planned end, its error): a power law with a floor through the trajectory."""
    if t.diverged or len(t.log_tokens) < FEWEST_EVALUATIONS:
        return None
    left = max(log_end - float(t.log_tokens[-1]), 0.0)
    if left < 1e-6:
        return float(t.smooth[-1]), noise
    late = t.log_tokens >= t.log_tokens[-1] - 1.5
    curve = best_curve(t.log_tokens[late], _decreasing(t.smooth[late]))
    ahead = float(np.log(curve.loss(log_end)))
    share = left / float(-np.log(FEWEST_SHARE))
    return ahead, float(np.hypot(noise, CURVE_ERROR * share))


def _decreasing(log_losses: Array) -> Array:
    """Strictly, so that a curve can be inverted."""
    return np.asarray(log_losses - 1e-9 * np.arange(len(log_losses)), dtype=float)


def _larger_batch_neighbours(leader: Trajectory, own: Sequence[Trajectory]) -> set[str]:
    larger = sorted({t.batch_size for t in own if t.batch_size > leader.batch_size})
    rates = sorted({t.learning_rate for t in own})
    at = rates.index(leader.learning_rate)
    near = set(rates[max(at - 1, 0) : at + 2])
    return {
        t.name for t in own if larger and t.batch_size == larger[0] and t.learning_rate in near
    }


def _pruned(
    t: Trajectory,
    leader: Trajectory,
    end: float,
    loss: float,
    best: float,
    error: float,
    deviation: float,
) -> Prunable:
    bound = loss - SAFE_DEVIATIONS * error
    return Prunable(
        run=t.name,
        reason=(
            f"Extrapolated to {end:.3g} tokens it reaches loss {np.exp(loss):.4g} and not less than "
            f"{np.exp(bound):.4g}; the leader {leader.name} reaches {np.exp(best):.4g}."
        ),
        tokens_saved=float(end - np.exp(t.end)),
        expected_loss=float(np.exp(loss)),
        loss_bound=float(np.exp(bound)),
        error_risk=0.5 * math.erfc((loss - best) / deviation / math.sqrt(2.0)),
    )
