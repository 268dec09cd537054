"""How far the optimum's law may bend between the sizes of a sweep and a target.

A law is a line over n = ln N as far as a sweep of few sizes can tell. If the exponent changes with the size,

    ln x* = line(n) + b (n^2 - l(n)),   l the line through n^2 at the sweep's own sizes,

since a fit takes l(n) for a part of its line. What is left grows with the square of the distance, and within the sweep it
looks like scatter of the sizes. So b is not estimated: an answer keeps its line, and its interval gets the root mean
square of b given the sizes' deviations y, whose scatter has an unknown scale s (scale.py):

    y = b n^2 + e,   b ~ N(0, USUAL_BEND^2),   e ~ N(0, noise + s^2 usual),

all of it in the S - 2 contrasts that a line leaves free. Sizes that follow a line closely leave little room for a bend,
as it would have to be cancelled by chance.
"""

from __future__ import annotations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.results import Bend
from isoloss.laws.surface.scale import SHARED, scale_prior
from isoloss.usual import USUAL_BEND


def possible_bend(log_params: Array, shifts: Array, noise: Array, usual: Array) -> Bend:
    """What a law over these sizes may bend by.

    `log_params` (sizes,) are ln N; `shifts` (sizes, k) how far each size's optimum of k hyperparameters is from the law, ln x,
    and `noise` (sizes, k) the variances of that; `usual` (k,) is the usual variance of sizes about a law.
    """
    centre = float(log_params.mean())
    n = log_params - centre
    if len(n) < 2:
        # The trend over sizes is from elsewhere, and so is its error.
        return Bend(np.zeros(len(usual)), centre, 0.0, 0.0)
    slope, level = (float(value) for value in np.polyfit(n, n**2, 1))
    free = np.linalg.qr(np.stack([np.ones_like(n), n], axis=1), mode="complete")[0][:, 2:]
    squares = [
        _mean_square(free.T @ shift, free.T @ n**2, free.T @ np.diag(error) @ free, variance)
        for shift, error, variance in zip(shifts.T, noise.T, usual, strict=True)
    ]
    return Bend(np.sqrt(squares), centre, level, slope)


def _mean_square(shifts: Array, squares: Array, noise: Array, usual: float) -> float:
    """Of b, given contrasts (c,) of the shifts and of n^2, and the covariance (c, c) of their noise."""
    prior = USUAL_BEND**2
    scatter = SHARED[:, None, None] ** 2 * usual * np.eye(len(shifts)) + noise
    precision = np.linalg.inv(scatter)
    known = 1.0 / prior + squares @ precision @ squares
    mean = squares @ precision @ shifts / known
    # Of the contrasts without regard to b, by the matrix determinant lemma.
    determinant = np.linalg.slogdet(scatter)[1] + np.log(prior * known)
    fit = shifts @ precision @ shifts - mean**2 * known
    weights = scale_prior() * np.exp(-0.5 * ((determinant + fit) - (determinant + fit).min()))
    return float(np.average(mean**2 + 1.0 / known, weights=weights))
