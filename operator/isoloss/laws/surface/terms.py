"""The order of coefficients when linear algebra needs a vector, and the trends that they stand for."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array, Flags
from isoloss.laws.curves import OptimumTrends, Quantity, Trend


class Shape(IntEnum):
    """The nine coefficients of the joint surface, in addition to a level per cell, with x = ln LR and y = ln B."""

    XX = 0
    XY = 1
    YY = 2
    X = 3
    X_PARAMS = 4
    X_TOKENS = 5
    Y = 6
    Y_PARAMS = 7
    Y_TOKENS = 8


class LawTerm(IntEnum):
    """The six coefficients of its optimum."""

    RATE = 0
    RATE_OF_PARAMS = 1
    RATE_OF_TOKENS = 2
    BATCH = 3
    BATCH_OF_PARAMS = 4
    BATCH_OF_TOKENS = 5


PER_QUANTITY = int(LawTerm.BATCH)
"""Coefficients of the law of one hyperparameter."""
OF_RATE = slice(LawTerm.RATE, LawTerm.BATCH)
OF_BATCH = slice(LawTerm.BATCH, len(LawTerm))
TRENDS: dict[Quantity, LawTerm] = {
    "learning_rate": LawTerm.RATE_OF_PARAMS,
    "batch_size": LawTerm.BATCH_OF_PARAMS,
}
"""The exponents of N."""


class Centre(NamedTuple):
    """What the coefficients count from."""

    log_rate: float
    log_batch: float
    log_params: float
    log_tokens: float


def optimum_law(coefficients: Array, centre: Centre) -> tuple[Array, Flags]:
    """(LawTerm coefficients (..., 6), convex (...,)) of surfaces (..., 9): minus the inverse Hessian times
    the gradient at the centre."""
    h11, h12, h22 = (coefficients[..., term] for term in (Shape.XX, Shape.XY, Shape.YY))
    determinant = h11 * h22 - h12**2
    convex = (h11 > 0) & (h22 > 0) & (determinant > 0)
    safe = np.where(convex, determinant, 1.0)[..., None]
    p = coefficients[..., Shape.X : Shape.X_TOKENS + 1]
    q = coefficients[..., Shape.Y : Shape.Y_TOKENS + 1]
    rate = -(h22[..., None] * p - h12[..., None] * q) / safe
    batch = -(h11[..., None] * q - h12[..., None] * p) / safe
    law = np.concatenate([rate, batch], axis=-1)
    law[..., LawTerm.RATE] += centre.log_rate
    law[..., LawTerm.BATCH] += centre.log_batch
    return law, convex


def trends(law: Array, centre: Centre, curvatures: Array | None = None) -> OptimumTrends:
    """The law (6,), with coefficients (4,) of (ln N)^2, then of (ln D)^2, of ln LR and ln B, as trends; None: without any."""
    squares = np.zeros((2, 2)) if curvatures is None else curvatures.reshape(2, 2)
    rate, batch = (
        Trend(*map(float, law[part]), *map(float, squares[:, at]))
        for at, part in enumerate((OF_RATE, OF_BATCH))
    )
    return OptimumTrends(rate, batch, float(centre.log_params), float(centre.log_tokens))
