"""A cell's own optimum and what other settings cost there, read off its raw losses.

No form is assumed that the contenders fit: several readings of a cell (a quadratic or a cubic, in a narrow or
a wide window) predict the losses of its best runs, each run left out in turn, and the one that predicts
them best is the judge. How far the readings lie apart is a part of its error.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDE, NARROW = 0.05, 0.02
"""Nats above a cell's best run within which its losses are fitted."""
ENOUGH = 15
"""Runs that a reading needs; a quadratic in the wide window takes what there is."""
QUADRATIC = ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2))
CUBIC = (*QUADRATIC, (3, 0), (2, 1), (1, 2), (0, 3))
"""Powers of ln LR and ln B."""
READINGS = ((NARROW, QUADRATIC), (WIDE, QUADRATIC), (WIDE, CUBIC))
STEPS = 30

Powers = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Reading:
    """A polynomial through the losses near a cell's best."""

    powers: Powers
    centre: np.ndarray
    coefficients: np.ndarray
    vertex: np.ndarray
    """(ln LR, ln B)."""
    lowest: float
    convex: bool
    """Whether the vertex is a minimum; a cubic's is also within its window's runs."""
    vertex_error: np.ndarray
    """(2,) standard deviations of the vertex, from the points' scatter."""
    left_out_error: float
    """Root mean square error, nats, for the cell's best runs, each predicted from all others."""
    low: np.ndarray
    high: np.ndarray
    """(2,) ends of what was fitted."""

    def regret(self, lr: float, b: float) -> float:
        """Nats above the minimum."""
        at = np.log([[lr, b]]) - self.centre
        return float(terms(at, self.powers)[0] @ self.coefficients - self.lowest)

    def covers(self, lr: float, b: float) -> bool:
        """Whether there are runs on all sides."""
        at = np.log([lr, b])
        return bool(np.all(at >= self.low) and np.all(at <= self.high))


@dataclass(frozen=True)
class Judge:
    """The reading that predicts a cell's best runs best, and the others that have a minimum."""

    reading: Reading
    others: tuple[Reading, ...]

    @property
    def vertex(self) -> np.ndarray:
        """(ln LR, ln B)."""
        return self.reading.vertex

    @property
    def convex(self) -> bool:
        """Whether the cell has an optimum."""
        return self.reading.convex

    @property
    def vertex_error(self) -> np.ndarray:
        """(2,) standard deviations: of noise, and of the readings about this one."""
        apart = [(other.vertex - self.vertex) ** 2 for other in self.others]
        spread = np.mean([np.zeros(2), *apart], axis=0)
        return np.asarray(np.sqrt(self.reading.vertex_error**2 + spread))

    def regret(self, lr: float, b: float) -> float:
        """Nats above the minimum; a cubic says nothing where it has no runs, quadratics there do."""
        if len(self.reading.powers) == len(QUADRATIC) or self.reading.covers(lr, b):
            return self.reading.regret(lr, b)
        quadratics = [o for o in self.others if len(o.powers) == len(QUADRATIC)]
        return max(o.regret(lr, b) for o in quadratics or (self.reading,))


def judge(points: np.ndarray) -> Judge:
    """The judge of a cell by its points (ln LR, ln B, loss)."""
    found = [read(points, *how) for how in READINGS if _enough(points, *how)]
    good = [reading for reading in found if reading.convex] or [read(points, WIDE, QUADRATIC)]
    good.sort(key=lambda reading: reading.left_out_error)
    return Judge(good[0], tuple(good[1:]))


def quadratic(points: np.ndarray) -> Reading:
    """What a plain regression takes for a cell's optimum: a quadratic, in the narrow window where that has runs enough."""
    return read(points, NARROW if _enough(points, NARROW, QUADRATIC) else WIDE, QUADRATIC)


def _enough(points: np.ndarray, window: float, powers: Powers) -> bool:
    return len(near_best(points, window)) >= ENOUGH + len(powers) - len(QUADRATIC)


def read(points: np.ndarray, window: float, powers: Powers) -> Reading:
    """The least-squares polynomial through the points within `window` nats of the best."""
    near = near_best(points, window)
    centre = near[:, :2].mean(axis=0)
    design = terms(near[:, :2] - centre, powers)
    solver = np.linalg.pinv(design)
    c = solver @ near[:, 2]
    residuals = near[:, 2] - design @ c
    low, high = near[:, :2].min(axis=0), near[:, :2].max(axis=0)
    at = _lowest_place(c, powers, low - centre, high - centre)
    slopes, hessian = derivatives(at, powers)
    curvature = np.tensordot(hessian, c, axes=([2], [0]))
    convex = bool(np.linalg.eigvalsh(curvature)[0] > 0)
    if powers != QUADRATIC:
        convex = convex and bool(np.all(np.abs(slopes @ c) < 1e-6))
    moves = np.linalg.pinv(curvature) @ slopes @ solver
    scatter = (residuals**2).sum() / max(len(near) - len(powers), 1)
    return Reading(
        powers,
        centre,
        c,
        centre + at,
        float(terms(at[None, :], powers)[0] @ c),
        convex,
        np.sqrt(scatter * (moves**2).sum(axis=1)),
        _left_out_error(residuals, design @ solver, near[:, 2]),
        low,
        high,
    )


def _left_out_error(residuals: np.ndarray, hat: np.ndarray, losses: np.ndarray) -> float:
    best = losses <= losses.min() + NARROW
    left_out = residuals / np.maximum(1.0 - np.diag(hat), 1e-6)
    return float(np.sqrt(np.mean(left_out[best] ** 2)))


def _lowest_place(c: np.ndarray, powers: Powers, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Newton's from the centre; a cubic's steps stay among its runs, as it has no minimum far away."""
    at = np.zeros(2)
    for _ in range(STEPS):
        slopes, hessian = derivatives(at, powers)
        curvature = np.tensordot(hessian, c, axes=([2], [0]))
        at = at - np.linalg.pinv(curvature) @ slopes @ c
        if powers != QUADRATIC:
            at = np.clip(at, low, high)
    return at


def terms(p: np.ndarray, powers: Powers = QUADRATIC) -> np.ndarray:
    """(points, terms) of positions (points, 2)."""
    return np.stack([p[:, 0] ** i * p[:, 1] ** j for i, j in powers], axis=1)


def derivatives(at: np.ndarray, powers: Powers) -> tuple[np.ndarray, np.ndarray]:
    """(first (2, terms), second (2, 2, terms)) of the terms at a position (2,)."""
    first = np.zeros((2, len(powers)))
    second = np.zeros((2, 2, len(powers)))
    for k, power in enumerate(powers):
        for a in range(2):
            first[a, k] = _derivative(at, power, (a,))
            for b in range(2):
                second[a, b, k] = _derivative(at, power, (a, b))
    return first, second


def _derivative(at: np.ndarray, power: Sequence[int], by: Sequence[int]) -> float:
    left, factor = list(power), 1.0
    for axis in by:
        factor *= left[axis]
        left[axis] -= 1
    return 0.0 if factor == 0.0 else float(factor * at[0] ** left[0] * at[1] ** left[1])


def near_best(points: np.ndarray, window: float) -> np.ndarray:
    """The points whose loss is at most `window` nats above the best one's."""
    return np.asarray(points[points[:, 2] <= points[:, 2].min() + window])
