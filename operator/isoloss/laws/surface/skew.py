"""The terms of the joint surface, and what is believed of cubic ones: a valley may be steeper on one side than on the other.

Cubic terms count from the optimum of every (N, D), where they have neither slope nor curvature: the optimum's law is read off the
quadratic part. Where the optimum is follows from the fit, so that the two are found in turn.

Their coefficients k have a prior, N(0, T), and what the points show of them joins it. With K the cubic columns less what the
other terms explain, W the weights and A = K'WK,

    K'W z = A k + e,        e noise of covariance E,        k~ = T A (A T A + E)^-1 K'W z

A grid of five values shows them, one of three nearly leaves the prior: no threshold decides. What stays open of them is a part of the
optimum's error (random_effects.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array, Indices
from isoloss.laws.least_squares import Levelled
from isoloss.laws.surface.noise import Noise
from isoloss.laws.surface.terms import PER_QUANTITY, Centre, Shape, optimum_law
from isoloss.usual import FARTHEST_CUBIC, USUAL_ASYMMETRY

TURNS = 6
CONVERGED = 1e-3
"""Share of itself by which no coefficient moves any more in a turn."""
SETTLED = 0.1
"""Share of the largest coefficient by which the last turn may move any."""


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


class Cubic(NamedTuple):
    """Terms counted from an optimum."""

    columns: Array
    """(points, k); none if there is no optimum to count from."""
    variances: Array
    """(k,) prior ones of their coefficients."""


@dataclass(frozen=True)
class Valley:
    """The terms of a parabola, fitted beside the cubic ones as far as these are believed."""

    design: Array
    """(points, terms)"""
    solver: Array
    """(terms, points): from z to their coefficients."""
    coefficients: Array
    """(terms,)"""
    cubic: Cubic
    share: Array
    """(k, k) how much of cubic coefficients is believed."""
    residuals: Array
    """(points,) z less the parabola, without levels."""
    misfit: Array
    """(points,) what the cubic terms leave of that, as far as they are believed."""
    unknowns: float
    """Coefficients that were fitted, the cells' levels included."""
    taken: int
    """See Noise.of_residuals."""


def fit_valley(
    design: Array,
    cells: Levelled,
    z: Array,
    cubic_at: Callable[[Array], Cubic],
    runs: Indices,
    taken: int,
    form: float = 0.0,
) -> Valley:
    """Fitted to z (points,), the wasted ln D.

    `cubic_at` are the cubic terms beside such coefficients (terms,), `form` is what points far away err by about the bottom's own ones, in
    their prior's standard deviations. `runs` (points,) numbers the trajectories, whose points err together; `taken` see
    Noise.of_residuals.
    """
    plain = cells.solver(design)
    unknowns = float(cells.unknowns(design))
    coefficients = plain @ z
    cubic = last = cubic_at(coefficients)
    moved, misfit = np.zeros_like(coefficients), cells.without_levels(z - design @ coefficients)
    reader = np.zeros((len(last.variances), len(z)))
    for _ in range(TURNS if len(last.variances) else 0):
        cubic = last
        noise = Noise.of_residuals(misfit, cells, runs, unknowns, taken)
        reader = believed(cells, design, plain, cubic, form, noise)
        shown = cubic.columns @ (reader @ z)
        found = plain @ (z - shown)
        misfit = cells.without_levels(z - shown - design @ found)
        moved, coefficients = np.abs(found - coefficients), found
        last = cubic_at(found)
        if not len(last.variances) or (moved <= CONVERGED * np.abs(found)).all():
            break
    # Where every turn finds another optimum, or one of them none, the parabola alone answers.
    if not len(last.variances) or moved.max() > SETTLED * np.abs(coefficients).max():
        coefficients = plain @ z
        cubic = last = cubic_at(coefficients)
        reader = np.zeros((len(last.variances), len(z)))
        misfit = cells.without_levels(z - design @ coefficients)
    own = cubic.columns - design @ (plain @ cubic.columns)
    plain -= (plain @ cubic.columns) @ reader
    return Valley(
        design,
        plain,
        coefficients,
        Cubic(cubic.columns, last.variances),
        reader @ own,
        cells.without_levels(z - design @ coefficients),
        misfit,
        unknowns,
        taken,
    )


def believed(
    levels: Levelled, design: Array, solver: Array, cubic: Cubic, form: float, noise: Noise
) -> Array:
    """(k, points): from values to the coefficients of cubic terms beside `design` (points, terms), whose solver is given; `form` see
    fit_valley."""
    own = levels.without_levels(cubic.columns - design @ (solver @ cubic.columns))
    # What is left of a term that the other ones explain are rounding errors.
    own[:, levels.weights @ own**2 <= ROUNDING**2] = 0.0
    maps = (own * levels.weights[:, None]).T
    information = maps @ own
    known = information * cubic.variances
    seen = (1.0 + form**2) * known @ information + noise.covariance(maps)
    inverse = np.linalg.pinv(seen, rcond=ROUNDING, hermitian=True)
    return np.asarray(known.T @ inverse @ maps, dtype=float)


def quadratic(points: Points) -> Array:
    """(points, 9): the terms of Shape."""
    x, y, n, d = points
    return np.stack([0.5 * x**2, x * y, 0.5 * y**2, x, x * n, x * d, y, y * n, y * d], axis=1)


def cubic_at(points: Points, coefficients: Array) -> Cubic:
    """u^3 / 6, u^2 v / 2, v^3 / 6 and u v^2 / 2, with u and v counted from the optimum of such coefficients (9,)."""
    law, convex = optimum_law(coefficients, Centre(0.0, 0.0, 0.0, 0.0))
    if not convex:
        return Cubic(np.zeros((len(points.n), 0)), np.zeros(0))
    where = np.stack([np.ones_like(points.n), points.n, points.d])
    u = np.clip(points.x - law[:PER_QUANTITY] @ where, -FARTHEST_CUBIC, FARTHEST_CUBIC)
    v = np.clip(points.y - law[PER_QUANTITY:] @ where, -FARTHEST_CUBIC, FARTHEST_CUBIC)
    xx, yy = coefficients[Shape.XX], coefficients[Shape.YY]
    mixed = np.sqrt(xx * yy)
    return Cubic(
        np.stack([u**3 / 6, u**2 * v / 2, v**3 / 6, u * v**2 / 2], axis=1),
        (USUAL_ASYMMETRY * np.array([xx, mixed, yy, mixed])) ** 2,
    )
