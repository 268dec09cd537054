"""Local straight lines through a trajectory in (ln D, ln L), and the linear map that they are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from isoloss.laws.arrays import Array

DENSE = 8
"""A trajectory with this many evaluations is dense: it is smoothed and its start is cut."""


@dataclass(frozen=True)
class Smoothers:
    """The smoothers of a sweep, each made once: most runs of a size are evaluated at the same tokens."""

    _made: dict[bytes, tuple[Array, Array]] = field(default_factory=dict)

    def smooth(self, x: Array, y: Array, counts: Array) -> tuple[Array, Array, Array]:
        """(smoothed and not increasing (n,), smoother (n, n), residuals (n,)) of ln L over ln D.

        A tricube kernel over the nearest evaluations, each the mean of `counts`. The residuals are those of single evaluations, scaled for the freedom it took.
        """
        n = len(x)
        if n < DENSE:
            return np.minimum.accumulate(y) if n else y, np.eye(n), np.zeros(n)
        key = b"".join(values.tobytes() for values in (x, counts))
        if key not in self._made:
            self._made[key] = _smoother(x, counts)
        smoother, freedom = self._made[key]
        smooth = smoother @ y
        residuals = (y - smooth) / freedom
        if counts.max() > 1:
            residuals = _scatter_of_means(y, counts)
        return np.minimum.accumulate(smooth), smoother, residuals


def _smoother(x: Array, counts: Array) -> tuple[Array, Array]:
    """(smoother (n, n), root of the share of an evaluation's variance that it leaves (n,))."""
    n = len(x)
    neighbours = max(6, min(n, round(0.35 * n)))
    distance = np.abs(x[:, None] - x[None, :])
    radius = np.sort(distance, axis=1)[:, neighbours - 1] * 1.0001
    weight = np.clip(1.0 - (distance / radius[:, None]) ** 3, 0.0, None) ** 3
    smoother = _local_lines(x, weight * counts)
    freedom = np.clip(1.0 - 2.0 * np.diag(smoother) + (smoother**2).sum(1), 0.1, None)
    return smoother, np.sqrt(freedom)


def _scatter_of_means(y: Array, counts: Array) -> Array:
    """(n - 2,) residuals of single evaluations, from means of evenly spaced ones.

    Against their neighbours: means are known so well that the smoother's own bending would pass for noise.
    """
    difference = y[1:-1] - 0.5 * (y[:-2] + y[2:])
    variance = 1.0 / counts[1:-1] + 0.25 / counts[:-2] + 0.25 / counts[2:]
    return np.asarray(difference / np.sqrt(variance), dtype=float)


def _local_lines(x: Array, weight: Array) -> Array:
    dx = x[None, :] - x[:, None]
    s0, s1, s2 = weight.sum(1), (weight * dx).sum(1), (weight * dx**2).sum(1)
    # The value at the centre of a weighted straight line, as weights on the observations.
    return np.asarray(
        weight * (s2[:, None] - s1[:, None] * dx) / (s0 * s2 - s1**2)[:, None], dtype=float
    )
