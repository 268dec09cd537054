"""Where the optimum of a grid of losses lies, and what another learning rate and batch size cost there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.transfer.grids import Place, Runs
from isoloss.laws import Array

WINDOW = 0.1
"""Nats above the grid's best that a quadratic still describes …"""
FEWEST = 9
"""… unless fewer runs than this are within: it has six coefficients."""


@dataclass(frozen=True)
class Optimum:
    """A quadratic in (ln LR, ln B) fitted to a grid's losses at one token count."""

    centre: Array
    coefficients: Array
    vertex: Array
    """(ln LR, ln B)."""
    lowest: float
    """Nats."""
    inside: bool
    """The vertex is a minimum between the grid's outermost lines; otherwise it says nothing."""

    def regret(self, log_rate: float, log_batch: float) -> float:
        """Nats above the quadratic's minimum."""
        row = _design(np.array([[log_rate, log_batch]]) - self.centre)
        return float(row[0] @ self.coefficients - self.lowest)

    def log_rate_at(self, log_batch: float) -> float:
        """The best ln LR at a batch size."""
        slope, cross, bend = self.coefficients[1], self.coefficients[4], self.coefficients[3]
        y = log_batch - self.centre[1]
        return float(self.centre[0] - (slope + cross * y) / (2.0 * bend))


def quadratic_optimum(points: Array, losses: Array) -> Optimum:
    """Fit a quadratic to the best of `losses` (n,) at `points` (n, 2) of (ln LR, ln B).

    Raises ValueError for fewer than FEWEST.
    """
    if len(losses) < FEWEST:
        raise ValueError(f"{len(losses)} runs reached these tokens; a quadratic needs {FEWEST}")
    order = np.argsort(losses, kind="stable")
    points, values = points[order], losses[order]
    count = max(FEWEST, int(np.sum(values <= values[0] + WINDOW)))
    near, values = points[:count], values[:count]
    centre = near.mean(axis=0)
    rows = _design(near - centre)
    c = np.asarray(np.linalg.lstsq(rows, values, rcond=None)[0], dtype=float)
    hessian = np.array([[2 * c[3], c[4]], [c[4], 2 * c[5]]])
    offset = -np.linalg.lstsq(hessian, c[1:3], rcond=None)[0]
    vertex = centre + offset
    convex = bool(np.linalg.eigvalsh(hessian)[0] > 0)
    within = bool(np.all(vertex >= points.min(axis=0)) and np.all(vertex <= points.max(axis=0)))
    return Optimum(
        centre,
        c,
        vertex,
        float(c[0] + 0.5 * c[1:3] @ offset),
        convex and within,
    )


def _design(p: Array) -> Array:
    x, y = p[:, 0], p[:, 1]
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)


def losses_at(runs: Runs, tokens: int) -> dict[Place, float]:
    """Of all runs of a grid that were read there and have not diverged."""
    return {
        place: run[tokens]
        for place, run in runs.items()
        if tokens in run and np.isfinite(run[tokens])
    }


def best_place(losses: Mapping[Place, float]) -> Place:
    """The grid's own lowest."""
    return min(losses, key=lambda place: losses[place])


def optimum(losses: Mapping[Place, float]) -> Optimum:
    """Of the quadratic through the grid's best losses. Raises ValueError with fewer runs than FEWEST."""
    places = list(losses)
    points = np.log([[place.rate, place.batch] for place in places])
    return quadratic_optimum(points, np.array([losses[place] for place in places]))


def has_optimum(losses: Mapping[Place, float]) -> bool:
    """Whether there are runs enough, and it is inside the grid."""
    return len(losses) >= FEWEST and optimum(losses).inside


def standard_errors(losses: Mapping[Place, float]) -> Array:
    """(2,) Of the optimum's ln LR and ln B, with each run left out in turn (the jackknife); inf with too few runs."""
    if len(losses) <= FEWEST:
        return np.full(2, np.inf)
    without = [{p: loss for p, loss in losses.items() if p != left} for left in losses]
    vertices = np.array([optimum(some).vertex for some in without])
    count = len(vertices)
    return np.asarray(np.sqrt((count - 1) * vertices.var(axis=0)), dtype=float)
