"""What is published of the exponents of N and D that the best batch size follows, as two more observations of them.

A grid of a few batch sizes, read along runs that are short for their warm-up or noisy, leaves these exponents open within
several tenths, and every answer far from the grid's own sizes and tokens with them. Published ones agree better:

    b ~ N(USUAL_BATCH_EXPONENTS, BATCH_EXPONENT_ERRORS^2),   law ~ N(fitted, covariance)

so that the law given both is the fitted one, moved by its covariance with b over that of b and of what is published. What
goes with the exponents moves along: the level of the batch size, and the learning rate, because valleys are ridges along both. A
sweep that shows its exponents keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.surface.terms import LawTerm
from isoloss.usual import BATCH_EXPONENT_ERRORS, USUAL_BATCH_EXPONENTS

OBSERVED = [LawTerm.BATCH_OF_PARAMS, LawTerm.BATCH_OF_TOKENS]


@dataclass(frozen=True)
class UsualExponents:
    """The observations, of a law that was fitted with this (6, 6) covariance."""

    covariance: Array

    @cached_property
    def _gain(self) -> Array:
        """(6, 2)"""
        seen = self.covariance[np.ix_(OBSERVED, OBSERVED)] + np.diag(BATCH_EXPONENT_ERRORS**2)
        return np.asarray(self.covariance[:, OBSERVED] @ np.linalg.inv(seen), dtype=float)

    def law(self, fitted: Array, errors: Array | float = 0.0) -> Array:
        """(..., 6), see LawTerm, from fitted ones; `errors` (..., 2) are of the observations, in their standard deviations."""
        observed = USUAL_BATCH_EXPONENTS + BATCH_EXPONENT_ERRORS * np.asarray(errors)
        return np.asarray(fitted + (observed - fitted[..., OBSERVED]) @ self._gain.T)

    def covariance_after(self, covariance: Array) -> Array:
        """(6, 6) of `law`, where that of the fitted one is this: in the mean, or with another error counted in."""
        kept = np.eye(len(LawTerm))
        kept[:, OBSERVED] -= self._gain
        published = self._gain * BATCH_EXPONENT_ERRORS
        return np.asarray(kept @ covariance @ kept.T + published @ published.T, dtype=float)
