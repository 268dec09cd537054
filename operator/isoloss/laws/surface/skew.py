"""The terms of the joint surface, and what is believed of cubic ones: a valley may be steeper on one side than on the other.

Cubic terms count from the optimum of every (N, D), where they have neither slope nor curvature: the optimum's law is read off the
quadratic part. Where the optimum is follows from the fit, so that the two are found in turn.

Their coefficients k have a prior, N(0, T), and what the points show of them joins it. With K the cubic columns less what the
other terms explain, W the weights and A = K'WK,

    K'W z = A k + e,        e noise of covariance E,        k~ = T A (A T A + E)^-1 K'W z

A grid of five values shows them, one of three nearly leaves the prior: no threshold decides. What stays open of them is a part of the
optimum's error (random_effects.py).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array, Indices
from isoloss.laws.least_squares import NO_COLUMN, Levelled
from isoloss.laws.surface.noise import Noise
from isoloss.laws.surface.terms import PER_QUANTITY, Centre, Shape, optimum_law
from isoloss.usual import USUAL_ASYMMETRY

TURNS = 6
CONVERGED = 1e-3
"""Share of itself by which no coefficient moves any more in a turn."""
SETTLED = 0.1
"""Share of the largest coefficient by which the last turn may move any."""
FARTHEST = 2.0
"""|ln x| from the optimum at which a cubic term stops to grow."""
ROUNDING = 1e-10
"""Share of the largest below which a combination of cubic terms is not there."""


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
    """The quadratic terms, fitted beside the cubic ones as far as these are believed."""

    design: Array
    """(points, 9): the terms of Shape."""
    solver: Array
    """(9, points): from z to their coefficients."""
    coefficients: Array
    """(9,)"""
    cubic: Array
    """(points, k) cubic terms; none if there is no optimum to count from."""
    cubic_variance: Array
    """(k,) prior variances of their coefficients."""
    residuals: Array
    """(points,) z less the quadratic terms, without levels."""
    misfit: Array
    """(points,) what the cubic ones leave of that, as far as they are believed."""
    unknowns: float
    """Coefficients that were fitted, the cells' levels included."""


def fit_valley(points: Points, cells: Levelled, z: Array, runs: Indices, taken: int) -> Valley:
    """Fitted to z (points,), the wasted ln D.

    `runs` (points,) numbers the trajectories, whose points err together; `taken` see Noise.of_residuals.
    """
    design = quadratic(points)
    plain = cells.solver(design)
    unknowns = float(cells.unknowns(design))
    coefficients = plain @ z
    convex = _convex(coefficients)
    cubic = _cubic(points, coefficients) if convex else np.zeros((len(z), 0))
    reader = np.zeros((cubic.shape[1], len(z)))
    for _ in range(TURNS if convex else 0):
        misfit = cells.without_levels(z - design @ coefficients - cubic @ (reader @ z))
        noise = Noise.of_residuals(misfit, cells, runs, unknowns, taken)
        prior = _prior(coefficients)
        cubic = _cubic(points, coefficients)
        reader = believed(cells, design, plain, cubic, prior, np.zeros_like(prior), noise)
        found = plain @ (z - cubic @ (reader @ z))
        moved, coefficients = np.abs(found - coefficients), found
        if not _convex(found) or (moved <= CONVERGED * np.abs(found)).all():
            break
    # Where every turn finds another optimum, or one of them none, the parabola alone answers.
    if convex and not (
        _convex(coefficients) and moved.max() <= SETTLED * np.abs(coefficients).max()
    ):
        reader = np.zeros_like(reader)
        coefficients = plain @ z
        cubic = _cubic(points, coefficients)
    residuals = cells.without_levels(z - design @ coefficients)
    return Valley(
        design,
        plain - (plain @ cubic) @ reader,
        coefficients,
        cubic,
        _prior(coefficients) if convex else np.zeros(0),
        residuals,
        cells.without_levels(residuals - cubic @ (reader @ z)),
        unknowns,
    )


def believed(
    levels: Levelled,
    design: Array,
    solver: Array,
    cubic: Array,
    prior: Array,
    form: Array,
    noise: Noise,
) -> Array:
    """(k, points): from values to the coefficients of cubic terms (points, k) beside `design` (points, terms), whose solver is given.

    `prior` (k,) are their variances, `form` (k,) those of what points far away show of another valley than the bottom's.
    """
    own = levels.without_levels(cubic - design @ (solver @ cubic))
    # What is left of a term that the other ones explain are rounding errors.
    own[:, levels.weights @ own**2 <= NO_COLUMN**2] = 0.0
    maps = (own * levels.weights[:, None]).T
    information = maps @ own
    seen = (information * (prior + form)) @ information + noise.covariance(maps)
    inverse = np.linalg.pinv(seen, rcond=ROUNDING, hermitian=True)
    return np.asarray((information * prior).T @ inverse @ maps, dtype=float)


def _prior(coefficients: Array) -> Array:
    """(4,) variances of cubic coefficients in a valley of this curvature."""
    xx, yy = coefficients[Shape.XX], coefficients[Shape.YY]
    mixed = np.sqrt(xx * yy)
    return np.asarray((USUAL_ASYMMETRY * np.array([xx, mixed, yy, mixed])) ** 2)


def quadratic(points: Points) -> Array:
    """(points, 9): the terms of Shape."""
    x, y, n, d = points
    return np.stack([0.5 * x**2, x * y, 0.5 * y**2, x, x * n, x * d, y, y * n, y * d], axis=1)


def _cubic(points: Points, coefficients: Array) -> Array:
    """(points, 4): u^3 / 6, u^2 v / 2, v^3 / 6 and u v^2 / 2, with u and v counted from the optimum."""
    law = optimum_law(coefficients, Centre(0.0, 0.0, 0.0, 0.0))[0]
    where = np.stack([np.ones_like(points.n), points.n, points.d])
    u = np.clip(points.x - law[:PER_QUANTITY] @ where, -FARTHEST, FARTHEST)
    v = np.clip(points.y - law[PER_QUANTITY:] @ where, -FARTHEST, FARTHEST)
    return np.stack([u**3 / 6, u**2 * v / 2, v**3 / 6, u * v**2 / 2], axis=1)


def _convex(coefficients: Array) -> bool:
    return bool(optimum_law(coefficients, Centre(0.0, 0.0, 0.0, 0.0))[1])
