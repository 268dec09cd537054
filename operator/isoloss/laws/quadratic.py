"""One quadratic over (ln LR, ln B), wherever a valley is read by itself: a level, a held-out cell, a suspect's neighbours, a figure.

    c0 + c1 x + c2 y + c3 x^2 + c4 x y + c5 y^2,   x and y counted from a centre.

The joint surface has terms of its own (surface/skew.py), since its cells share their curvature.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from isoloss.laws.arrays import Array, Flags
from isoloss.laws.least_squares import weighted_solver
from isoloss.usual import NEAR_OPTIMUM

TERMS = 6
NEAR = (NEAR_OPTIMUM, 2.0 * NEAR_OPTIMUM)
"""ln D wasted against a cell's best at which a point counts half: the nearer the bottom, the less the valley's form matters. Where
near ones leave a curvature open, farther ones count as well."""
FARTHEST_WASTE = 10.0
"""Times that, beyond which it does not count: without this bound a skewed valley's walls bend it."""


@dataclass(frozen=True)
class Quadratic:
    """A weighted fit to points, and the linear map that made it."""

    centre: Array
    """(2,)"""
    coefficients: Array
    """(6,)"""
    solver: Array
    """(6, points): coefficients = solver @ values."""
    residuals: Array
    """(points,)"""
    leverage: Array
    """(points,) by how much a point's own value moves the fit there."""

    def at(self, x: Array, y: Array) -> Array:
        """Its value at ln LR, ln B."""
        return value_at(self.coefficients, self.centre, x, y)


def fit_quadratic(x: Array, y: Array, values: Array, weights: Array) -> Quadratic:
    """Least squares through (points,), counted from their weighted mean; see `is_determined`."""
    total = weights.sum()
    centre = np.array([(x * weights).sum() / total, (y * weights).sum() / total])
    design = quadratic_terms(x - centre[0], y - centre[1])
    solver = weighted_solver(design, weights)
    coefficients = solver @ values
    return Quadratic(
        centre=centre,
        coefficients=coefficients,
        solver=solver,
        residuals=values - design @ coefficients,
        leverage=np.einsum("ij,ji->i", design, solver),
    )


def window(excess: Array, near: float) -> Array:
    """Weights of points by what they waste against the best; those that waste `near` count half."""
    weights = 1.0 / (1.0 + (excess / near) ** 2)
    return np.where(excess < FARTHEST_WASTE * near, weights, 1e-6)


def is_determined(x: Array, y: Array) -> bool:
    """Whether points at these places tell all six terms apart."""
    if len(x) < TERMS:
        return False
    return _are_determined(*(np.asarray(v, dtype=float).tobytes() for v in (x, y)))


@lru_cache(maxsize=1024)
def _are_determined(x_bytes: bytes, y_bytes: bytes) -> bool:
    """Of places as they lie in memory: most cells and levels of a size have the same ones."""
    x, y = np.frombuffer(x_bytes), np.frombuffer(y_bytes)
    design = quadratic_terms(x - x.mean(), y - y.mean())
    return bool(np.linalg.matrix_rank(design, tol=1e-6) == TERMS)


def quadratic_terms(dx: Array, dy: Array) -> Array:
    """(..., 6): 1, x, y, x^2, xy, y^2."""
    terms = np.empty((*np.shape(dx), TERMS))
    for at, term in enumerate((1.0, dx, dy, dx**2, dx * dy, dy**2)):
        terms[..., at] = term
    return terms


def value_at(coefficients: Array, centre: Array, x: Array, y: Array) -> Array:
    """The quadratic at ln LR, ln B."""
    terms = quadratic_terms(np.asarray(x - centre[0]), np.asarray(y - centre[1]))
    return np.asarray(terms @ coefficients, dtype=float)


def vertex_of(coefficients: Array, centre: Array) -> tuple[Array, Array, Flags]:
    """(vertex (..., 2), value there (...,), convex (...,)) of quadratics (..., 6)."""
    c0, c1, c2, c3, c4, c5 = np.moveaxis(coefficients, -1, 0)
    determinant = 4.0 * c3 * c5 - c4**2
    convex = (c3 > 0) & (c5 > 0) & (determinant > 0)
    safe = np.where(convex, determinant, 1.0)
    x = (c4 * c2 - 2.0 * c5 * c1) / safe
    y = (c4 * c1 - 2.0 * c3 * c2) / safe
    value = c0 + 0.5 * (c1 * x + c2 * y)
    return np.stack([x, y], axis=-1) + centre, value, convex
