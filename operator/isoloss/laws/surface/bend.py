"""How far the optimum's law may bend between the sizes and tokens of a sweep and a target.

A law is a line over n = ln N as far as a sweep of few sizes can tell. If the exponent changes with the size,

    ln x* = line(n) + b (n^2 - l(n)),   l the line through n^2 at the sweep's own sizes,

since a fit takes l(n) for a part of its line. What is left grows with the square of the distance, and within the sweep it
looks like scatter of the sizes. So b is not estimated: an answer keeps its line, and its interval gets the root mean
square of b given the sizes' deviations y, whose scatter has an unknown scale s (scale.py):

    y = b n^2 + e,   b ~ N(0, USUAL_BEND^2),   e ~ N(0, noise + s^2 usual),

all of it in the S - 2 contrasts that a line leaves free. Sizes that follow a line closely leave little room for a bend,
as it would have to be cancelled by chance.

Over d = ln D it may bend as well, by c (d^2 - l(n, d)) with l the plane through d^2 over the points of the fit. Every size
whose runs have a loss at three token counts shows a c of its own, which no line over its own tokens takes up:

    y_s = c + e_s,   c ~ N(0, USUAL_TOKEN_BEND^2),   e_s ~ N(0, noise_s + s^2 TOKEN_BEND_SCATTER^2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.least_squares import weighted_solver
from isoloss.laws.results import Bend, TokenBend
from isoloss.laws.surface.scale import SHARED, scale_prior
from isoloss.usual import TOKEN_BEND_SCATTER, USUAL_BEND, USUAL_TOKEN_BEND

CLEAR = 2.0
"""Standard deviations beyond which a bend over tokens is no chance."""


def possible_bend(log_params: Array, shifts: Array, noise: Array, usual: Array) -> Bend:
    """What a law over these sizes may bend by.

    `log_params` (sizes,) are ln N; `shifts` (sizes, k) how far each size's optimum of k hyperparameters is from the law, ln x,
    and `noise` (sizes, k) the variances of that; `usual` (k,) is the usual variance of sizes about a law.
    """
    centre = float(log_params.mean())
    n = log_params - centre
    slope, level = (float(value) for value in np.polyfit(n, n**2, 1))
    free = np.linalg.qr(np.stack([np.ones_like(n), n], axis=1), mode="complete")[0][:, 2:]
    squares = [
        _moments(
            free.T @ shift, free.T @ n**2, free.T @ np.diag(error) @ free, variance, USUAL_BEND**2
        )[1]
        for shift, error, variance in zip(shifts.T, noise.T, usual, strict=True)
    ]
    return Bend(np.sqrt(squares), centre, level, slope)


class OwnBends(NamedTuple):
    """The coefficients of (ln D)^2 that single sizes show for their optima."""

    shown: Array
    """(sizes, k), of ln x of k hyperparameters, and …"""
    noise: Array
    """(sizes, k) … their variances."""

    def moments(self) -> tuple[Array, Array]:
        """((k,) means, (k,) mean squares) of the coefficient that they have in common."""
        usual, prior = TOKEN_BEND_SCATTER**2, USUAL_TOKEN_BEND**2
        found = [
            _moments(own, np.ones(len(own)), np.diag(error), usual, prior)
            for own, error in zip(self.shown.T, self.noise.T, strict=True)
        ]
        return np.array([mean for mean, _ in found]), np.array([square for _, square in found])

    @property
    def are_clear(self) -> bool:
        """Whether the optimum of any hyperparameter bends over tokens beyond doubt, at all sizes alike."""
        means, squares = self.moments()
        return bool((means**2 > CLEAR**2 * (squares - means**2)).any())


def possible_token_bend(
    log_params: Array, log_tokens: Array, weights: Array, bends: OwnBends
) -> TokenBend:
    """What a law over these points may bend by over tokens: (points,) ln N and ln D with their weights in the fit."""
    centre = tuple(float(np.average(v, weights=weights)) for v in (log_params, log_tokens))
    n, d = log_params - centre[0], log_tokens - centre[1]
    design = np.stack([np.ones_like(n), n, d], axis=1)
    plane = weighted_solver(design, weights) @ d**2
    return TokenBend(np.sqrt(bends.moments()[1]), centre[0], centre[1], plane)


def _moments(
    shifts: Array, squares: Array, noise: Array, usual: float, prior: float
) -> tuple[float, float]:
    """(mean, mean square) of b ~ N(0, prior) in shifts = b squares + e, (c,) each.

    `noise` (c, c) is the covariance of what noise puts into e.
    """
    scatter = SHARED[:, None, None] ** 2 * usual * np.eye(len(shifts)) + noise
    precision = np.linalg.inv(scatter)
    known = 1.0 / prior + squares @ precision @ squares
    mean = squares @ precision @ shifts / known
    # Of the contrasts without regard to b, by the matrix determinant lemma.
    determinant = np.linalg.slogdet(scatter)[1] + np.log(prior * known)
    fit = shifts @ precision @ shifts - mean**2 * known
    weights = scale_prior() * np.exp(-0.5 * ((determinant + fit) - (determinant + fit).min()))
    square = float(np.average(mean**2 + 1.0 / known, weights=weights))
    return float(np.average(mean, weights=weights)), square
