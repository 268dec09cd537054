"""Local straight lines through a trajectory in (ln D, ln L), and the linear map that they are."""

from functools import lru_cache

import numpy as np

from isoloss.laws.arrays import Array

DENSE = 8
"""A trajectory with this many evaluations is dense: it is smoothed and its start is cut."""


def smoothed(x: Array, y: Array) -> tuple[Array, Array]:
    """(smoothed and not increasing (n,), residuals (n,)) of ln L over ln D.

    A tricube kernel over the nearest evaluations. The residuals are scaled for the freedom it took.
    """
    n = len(x)
    if n < DENSE:
        return np.minimum.accumulate(y) if n else y, np.zeros(n)
    smoother, freedom = _smoother(x.tobytes())
    smooth = smoother @ y
    return np.minimum.accumulate(smooth), (y - smooth) / freedom


def smoother_at(x: Array) -> Array:
    """(n, n): smoothed = smoother @ ln L at these ln D, before it is made monotone."""
    return np.eye(len(x)) if len(x) < DENSE else _smoother(x.tobytes())[0]


@lru_cache(maxsize=16)
def _smoother(x_bytes: bytes) -> tuple[Array, Array]:
    """(smoother (n, n), root of the share of an evaluation's variance that it leaves (n,)).

    Of ln D as they lie in memory: runs that follow one another were mostly evaluated at the same ones. Those of all runs, if each
    has its own, would be most of what a fit keeps in memory.
    """
    x = np.frombuffer(x_bytes)
    n = len(x)
    neighbours = max(6, min(n, round(0.35 * n)))
    distance = np.abs(x[:, None] - x[None, :])
    radius = np.sort(distance, axis=1)[:, neighbours - 1] * 1.0001
    weight = np.clip(1.0 - (distance / radius[:, None]) ** 3, 0.0, None) ** 3
    smoother = _local_lines(x, weight)
    freedom = np.clip(1.0 - 2.0 * np.diag(smoother) + (smoother**2).sum(1), 0.1, None)
    return smoother, np.sqrt(freedom)


def _local_lines(x: Array, weight: Array) -> Array:
    dx = x[None, :] - x[:, None]
    s0, s1, s2 = weight.sum(1), (weight * dx).sum(1), (weight * dx**2).sum(1)
    # The value at the centre of a weighted straight line, as weights on the observations.
    return np.asarray(
        weight * (s2[:, None] - s1[:, None] * dx) / (s0 * s2 - s1**2)[:, None], dtype=float
    )
