"""The terms of the joint surface, with cubic ones if its valley is steeper on one side than on the other.

Cubic terms count from the optimum of every (N, D), where they have neither slope nor curvature: the optimum's
law is read off the quadratic part as before. Where the optimum is follows from the fit, so that the two are
found in turn.

Those that do not show are left out, and what they would do to the optimum is a part of its error (random_effects.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array, Indices
from isoloss.laws.least_squares import Levelled
from isoloss.laws.surface.terms import PER_QUANTITY, Centre, Shape, optimum_law
from isoloss.usual import USUAL_ASYMMETRY

TURNS = 6
FEWEST_LINES = 4
"""Learning rates (or batch sizes) of a grid that show a third derivative."""
CLEAR = 4.0
"""F of the cubic terms beyond which they are no chance."""
FARTHEST = 2.0
"""|ln x| from the optimum at which a cubic term stops to grow."""


class Points(NamedTuple):
    """(points,) each, from their centre."""

    x: Array
    """ln LR"""
    y: Array
    """ln B"""
    n: Array
    """ln N"""
    d: Array
    """ln D"""


@dataclass(frozen=True)
class Valley:
    """The terms of a fit, and the cubic ones that it does without."""

    design: Array
    """(points, terms): Shape, and cubic terms if they are clear; a level per cell goes with them."""
    unseen: Array
    """(points, k): cubic terms that are left out, …"""
    unseen_variance: Array
    """… (k,) and the variances that published sweeps have of their coefficients."""


def valley(points: Points, cells: Levelled, z: Array, runs: Indices) -> Valley:
    """Quadratic terms, and cubic ones if `z`, the wasted ln D, shows them.

    `runs` (points,) numbers the trajectories, whose points err together.
    """
    plain = quadratic(points)
    coefficients = cells.coefficients(plain, z)
    if not _convex(coefficients):
        return Valley(plain, np.zeros((len(z), 0)), np.zeros(0))
    skewed = _skewed(points, cells, coefficients, z, len(np.unique(runs)))
    if skewed is not None:
        return skewed
    return Valley(plain, _cubic(points, coefficients), _usual(coefficients))


def _skewed(
    points: Points, cells: Levelled, coefficients: Array, z: Array, runs: int
) -> Valley | None:
    """With cubic terms if the grid has the values for them and they are no chance, from the plain fit's coefficients."""
    wanted = [len(np.unique(np.round(v, 6))) >= FEWEST_LINES for v in (points.x, points.y)]
    plain = quadratic(points)
    freedom = runs - cells.unknowns(plain)
    extra = 2 * sum(wanted)
    if not any(wanted) or freedom <= extra:
        return None
    before = _squares(cells, z - plain @ coefficients)
    seen = np.repeat(wanted, 2)
    for _ in range(TURNS):
        cubic = _cubic(points, coefficients)
        skewed = np.concatenate([plain, cubic[:, seen]], axis=1)
        coefficients = cells.coefficients(skewed, z)
        if not _convex(coefficients):
            return None
    after = _squares(cells, z - skewed @ coefficients)
    if (before - after) / extra <= CLEAR * after / max(freedom - extra, 1):
        return None
    return Valley(skewed, cubic[:, ~seen], _usual(coefficients)[~seen])


def _usual(coefficients: Array) -> Array:
    """(4,) mean squares of cubic coefficients in a valley of this curvature."""
    xx, yy = coefficients[Shape.XX], coefficients[Shape.YY]
    mixed = np.sqrt(xx * yy)
    return np.asarray((USUAL_ASYMMETRY * np.array([xx, mixed, yy, mixed])) ** 2)


def quadratic(points: Points) -> Array:
    """(points, 9): the terms of Shape."""
    x, y, n, d = points
    return np.stack([0.5 * x**2, x * y, 0.5 * y**2, x, x * n, x * d, y, y * n, y * d], axis=1)


def _cubic(points: Points, coefficients: Array) -> Array:
    """(points, 4): u^3 / 6, u^2 v / 2, v^3 / 6 and u v^2 / 2, with u and v counted from the optimum."""
    law = optimum_law(coefficients[: len(Shape)], Centre(0.0, 0.0, 0.0, 0.0))[0]
    where = np.stack([np.ones_like(points.n), points.n, points.d])
    u = np.clip(points.x - law[:PER_QUANTITY] @ where, -FARTHEST, FARTHEST)
    v = np.clip(points.y - law[PER_QUANTITY:] @ where, -FARTHEST, FARTHEST)
    return np.stack([u**3 / 6, u**2 * v / 2, v**3 / 6, u * v**2 / 2], axis=1)


def _squares(cells: Levelled, left: Array) -> float:
    return float((cells.weights * cells.without_levels(left) ** 2).sum())


def _convex(coefficients: Array) -> bool:
    return bool(optimum_law(coefficients[: len(Shape)], Centre(0.0, 0.0, 0.0, 0.0))[1])
