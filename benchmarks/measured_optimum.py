"""Where the optimum of a grid of losses lies, and what another learning rate and batch size cost there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoloss.laws import Array, Run

WINDOW = 0.1
"""Nats above the grid's best that a quadratic still describes …"""
FEWEST = 9
"""… unless fewer runs than this are within: it has six coefficients."""


def loss_at(run: Run, tokens: float) -> float:
    """Loss at a token count, linear in ln tokens between evaluations; inf where the run did not get there."""
    if not len(run.tokens) or run.tokens[-1] < tokens:
        return float("inf")
    return float(np.interp(np.log(tokens), np.log(run.tokens), run.losses))


@dataclass(frozen=True)
class Optimum:
    """A quadratic in (ln LR, ln B) fitted to a grid's losses at one token count."""

    centre: Array
    coefficients: Array
    vertex: Array
    """(ln LR, ln B)."""
    errors: Array
    """(2,) standard errors of the vertex, from the residuals."""
    lowest: float
    """Nats."""
    noise: float
    """Root mean square residual, nats."""
    inside: bool
    """The vertex is a minimum between the grid's outermost lines; otherwise it says nothing."""
    covariance: Array
    """(6, 6) of the coefficients, from the residuals."""

    def regret(self, log_rate: float, log_batch: float) -> float:
        """Nats above the quadratic's minimum."""
        row = _design(np.array([[log_rate, log_batch]]) - self.centre)
        return float(row[0] @ self.coefficients - self.lowest)

    def log_rate_at(self, log_batch: float) -> float:
        """The best ln LR at a batch size."""
        slope, cross, bend = self.coefficients[1], self.coefficients[4], self.coefficients[3]
        y = log_batch - self.centre[1]
        return float(self.centre[0] - (slope + cross * y) / (2.0 * bend))

    def regret_error(self, log_rate: float, log_batch: float) -> float:
        """Standard error of the regret, nats, by the delta method.

        The vertex may move as well: as the loss is flat there, that changes the regret in second order alone.
        """
        return self.difference_error(np.array([log_rate, log_batch]), self.vertex)

    def difference_error(self, one: Array, other: Array) -> float:
        """Standard error of the difference of the losses at two places (2,), nats."""
        at = _design(np.array([one, other]) - self.centre)
        slope = at[0] - at[1]
        return float(np.sqrt(slope @ self.covariance @ slope))


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
    residuals = values - rows @ c
    noise = float(np.sqrt(residuals @ residuals / (count - len(c))))
    hessian = np.array([[2 * c[3], c[4]], [c[4], 2 * c[5]]])
    offset = -np.linalg.lstsq(hessian, c[1:3], rcond=None)[0]
    vertex = centre + offset
    convex = bool(np.linalg.eigvalsh(hessian)[0] > 0)
    within = bool(np.all(vertex >= points.min(axis=0)) and np.all(vertex <= points.max(axis=0)))
    return Optimum(
        centre,
        c,
        vertex,
        np.asarray(noise * _vertex_errors(rows, hessian, offset), dtype=float),
        float(c[0] + 0.5 * c[1:3] @ offset),
        noise,
        convex and within,
        np.asarray(noise**2 * np.linalg.pinv(rows.T @ rows), dtype=float),
    )


def _vertex_errors(rows: Array, hessian: Array, offset: Array) -> Array:
    """Standard errors of the vertex for noise of 1 nat, by the delta method."""
    x, y = offset
    # Derivatives of the gradient at the vertex with respect to the six coefficients.
    slopes = np.array([[0, 1, 0, 2 * x, y, 0], [0, 0, 1, 0, x, 2 * y]])
    moves = np.linalg.pinv(hessian) @ slopes
    covariance = moves @ np.linalg.pinv(rows.T @ rows) @ moves.T
    return np.sqrt(np.diag(covariance))


def _design(p: Array) -> Array:
    x, y = p[:, 0], p[:, 1]
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
