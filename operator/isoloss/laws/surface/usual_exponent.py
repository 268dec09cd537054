"""What is published of the exponent of D that the best batch size follows, as one more observation of it.

A grid of a few batch sizes, read along runs that are short for their warm-up or noisy, leaves that exponent open within
several tenths, and every answer far from the grid's own tokens with it. Published ones agree far better:

    b ~ N(USUAL_BATCH_EXPONENT, BATCH_EXPONENT_ERROR^2),   law ~ N(fitted, covariance)

so that the law given both is the fitted one, moved by its covariance with b over var(b) + BATCH_EXPONENT_ERROR^2. What
goes with the exponent moves along: the level of the batch size, and the learning rate, because valleys are ridges along both. A
sweep that shows its exponent keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.surface.terms import LawTerm
from isoloss.usual import BATCH_EXPONENT_ERROR, USUAL_BATCH_EXPONENT

AT = LawTerm.BATCH_OF_TOKENS


@dataclass(frozen=True)
class UsualExponent:
    """The observation, of a law with this (6, 6) covariance."""

    covariance: Array

    @property
    def _gain(self) -> Array:
        """(6,)"""
        variance = self.covariance[AT, AT] + BATCH_EXPONENT_ERROR**2
        return np.asarray(self.covariance[:, AT] / variance, dtype=float)

    def law(self, fitted: Array, errors: Array | float = 0.0) -> Array:
        """(..., 6), see LawTerm, from fitted ones; `errors` (...,) are of the observation, in its standard deviations."""
        observed = USUAL_BATCH_EXPONENT + BATCH_EXPONENT_ERROR * np.asarray(errors)
        return np.asarray(fitted + (observed - fitted[..., AT])[..., None] * self._gain)

    def covariance_after(self) -> Array:
        """(6, 6) of the law with the observation."""
        return np.asarray(self.covariance - np.outer(self._gain, self.covariance[AT]), dtype=float)
