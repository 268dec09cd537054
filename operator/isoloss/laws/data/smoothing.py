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

    def smooth(self, x: Array, y: Array) -> tuple[Array, Array, Array]:
        """(smoothed and not increasing (n,), smoother (n, n), residuals (n,)) of ln L over ln D.

        A tricube kernel over the nearest evaluations. The residuals are scaled for the freedom it took.
        """
        n = len(x)
        if n < DENSE:
            return np.minimum.accumulate(y) if n else y, np.eye(n), np.zeros(n)
        key = x.tobytes()
        if key not in self._made:
            self._made[key] = _smoother(x)
        smoother, freedom = self._made[key]
        smooth = smoother @ y
        return np.minimum.accumulate(smooth), smoother, (y - smooth) / freedom


def _smoother(x: Array) -> tuple[Array, Array]:
    """(smoother (n, n), root of the share of an evaluation's variance that it leaves (n,))."""
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
