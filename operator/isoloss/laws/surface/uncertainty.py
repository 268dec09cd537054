"""What a fit of the joint surface leaves open of the law of its optimum (random_effects.py), given what is published of exponents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from isoloss.laws.arrays import Array, Indices
from isoloss.laws.results import LawError
from isoloss.laws.surface import random_effects
from isoloss.laws.surface.joint_fit import SurfaceFit
from isoloss.laws.surface.noise import Noise
from isoloss.laws.surface.terms import PER_QUANTITY, LawTerm, Shape, optimum_law
from isoloss.usual import (
    BATCH_EXPONENT_ERRORS,
    EXPONENT_SCATTER,
    FLAT_SCATTER,
    SCALE_ERROR,
    STEEP_SCATTER,
    TOKEN_CURVATURE_SCATTER,
    USUAL_BATCH_EXPONENTS,
    USUAL_SIZE_CURVATURE,
    USUAL_TOKEN_CURVATURE,
)

CLEAR = 2.0
"""Standard deviations beyond which a bend over tokens, or a trend over sizes, is no chance."""
OBSERVED = [LawTerm.BATCH_OF_PARAMS, LawTerm.BATCH_OF_TOKENS]
TOKEN_CURVATURES = slice(len(LawTerm) + 2, len(LawTerm) + 4)
"""Of the terms of a posterior."""


def have_own_runs(runs: Indices) -> bool:
    """Whether most points, of these runs, are of a run of their own."""
    return 2 * len(np.unique(runs)) > len(runs)


def usual_scatter(hessian: Array) -> Array:
    """(2, 2) covariance of the optimum of a size about any law, where this is the curvature of ln D."""
    turn = np.linalg.inv(hessian)
    slopes = np.diag(FLAT_SCATTER**2 + STEEP_SCATTER**2 * np.diag(hessian @ hessian))
    return np.asarray(turn @ slopes @ turn.T, dtype=float)


@dataclass(frozen=True)
class Uncertainty:
    """Of one fit, which must be convex; everything is computed when first asked for."""

    fit: SurfaceFit

    @property
    def law(self) -> Array:
        """(6,) the optimum's law, see LawTerm: the fitted one beside `curvatures`, moved towards published exponents."""
        return self._fitted - self._expected_error[: len(LawTerm)]

    @property
    def curvatures(self) -> Array:
        """(4,) coefficients of (ln N)^2, then of (ln D)^2, of ln LR and ln B."""
        return self._expected_error[len(LawTerm) :]

    @cached_property
    def _fitted(self) -> Array:
        """(6,) the law of least squares, a line over ln N and ln D."""
        return optimum_law(self.fit.valley.coefficients, self.fit.centre)[0]

    @cached_property
    def _of_curvatures(self) -> Array:
        """(10,) the error of the law of least squares by the curvatures that the residuals are expected to show, and these."""
        found = random_effects.expected_curvatures(self.linear, self.posterior.scale)
        return np.concatenate([self.linear.shown.law_of_effects[:, : len(found)] @ found, found])

    @cached_property
    def _expected_error(self) -> Array:
        """(10,) the same with published exponents."""
        observed = (
            USUAL_BATCH_EXPONENTS - (self._fitted - self._of_curvatures[: len(LawTerm)])[OBSERVED]
        )
        return np.asarray(self._of_curvatures - self._gain @ observed, dtype=float)

    @cached_property
    def moments(self) -> Array:
        """(10, 10) second moments of the error of `law`, and of how far `curvatures` are off.

        Grids of a few batch sizes, read along short or noisy runs, leave the batch size's exponents open within several
        tenths. Published ones agree better, b ~ N(USUAL_BATCH_EXPONENTS, BATCH_EXPONENT_ERRORS^2), and are two more observations,
        weighed by the law's own covariance. What goes with the exponents moves along; a sweep that shows its exponents keeps
        them.
        """
        moments = self._before_published
        kept = np.eye(len(moments))
        kept[:, OBSERVED] -= self._gain
        published = self._gain * BATCH_EXPONENT_ERRORS
        return np.asarray(kept @ moments @ kept.T + published @ published.T, dtype=float)

    @cached_property
    def _before_published(self) -> Array:
        """(10, 10) the same before published exponents."""
        return self.posterior.about(self._of_curvatures)

    @property
    def law_covariance(self) -> Array:
        """(6, 6) of `law`."""
        return self.moments[: len(LawTerm), : len(LawTerm)]

    @cached_property
    def _gain(self) -> Array:
        """(10, 2)"""
        moments = self._before_published
        seen = moments[np.ix_(OBSERVED, OBSERVED)] + np.diag(BATCH_EXPONENT_ERRORS**2)
        return np.asarray(moments[:, OBSERVED] @ np.linalg.inv(seen), dtype=float)

    @cached_property
    def posterior(self) -> random_effects.Posterior:
        """Before published exponents."""
        return random_effects.posterior(self.linear)

    @property
    def curves_over_tokens(self) -> bool:
        """Whether the best learning rate or batch size bends over tokens beyond doubt, at all sizes alike."""
        means = self.posterior.mean[TOKEN_CURVATURES]
        variances = np.diag(self.posterior.covariance)[TOKEN_CURVATURES]
        return bool((means**2 > CLEAR**2 * variances).any())

    @property
    def _of_drifting_scale(self) -> Array:
        """(6, 6) what a scale of the waste that drifts over sizes and tokens adds to the error of a fitted law.

        A grid that is off to one side at every size shows it as exponents. It decides nothing, as it hides bends over tokens.
        """
        linear, valley = self.linear, self.fit.valley
        wasted = valley.residuals + valley.design @ valley.coefficients
        columns = np.stack([wasted * linear.log_params, wasted * linear.log_tokens], axis=1)
        drifting = replace(
            linear,
            unseen=np.concatenate([linear.unseen, columns], axis=1),
            unseen_variance=np.append(linear.unseen_variance, [SCALE_ERROR**2] * 2),
        )
        moved = linear.to_law @ (linear.solver @ columns)
        shown = random_effects.drifts(drifting, self.posterior.scale)
        return np.asarray(moved @ shown @ moved.T, dtype=float)

    def error(self, shift: Array) -> LawError:
        """Of a law that is `shift` (6,) away from `law`, as the half of a doubtful trend."""
        moments, usual, fit = self.moments.copy(), self.linear.usual, self.fit
        kept = np.eye(len(LawTerm))
        kept[:, OBSERVED] -= self._gain[: len(LawTerm)]
        drift = kept @ self._of_drifting_scale @ kept.T
        moments[: len(LawTerm), : len(LawTerm)] += np.outer(shift, shift) + drift
        along_runs = 0.0 if self.linear.own_runs else 1.0
        return LawError(
            moments=moments,
            noise=kept @ self.posterior.noise @ kept.T,
            scatter=self.posterior.scale**2 * usual.scatter,
            exponents=along_runs * usual.exponents,
            token_curvatures=along_runs * usual.token_curvatures,
            log_params_centre=fit.centre.log_params,
            log_tokens_centre=fit.centre.log_tokens,
            end=np.array(fit.end),
        )

    @cached_property
    def linear(self) -> random_effects.LinearFit:
        """The fit as random effects see it."""
        fit = self.fit
        return random_effects.LinearFit(
            solver=fit.valley.solver,
            design=fit.valley.design,
            levels=fit.levels,
            residuals=fit.valley.residuals,
            to_law=self._to_law,
            shifts=-(fit.positions @ fit.hessian),
            log_params=np.array(fit.sizes)[fit.cell] - fit.centre.log_params,
            log_tokens=fit.log_tokens - fit.centre.log_tokens,
            past_end=fit.past_end,
            size=np.unique(fit.sizes, return_inverse=True)[1][fit.cell],
            own_runs=have_own_runs(fit.runs),
            unseen=fit.valley.cubic.columns,
            unseen_variance=fit.valley.cubic.variances,
            noise=self.noise,
            usual=random_effects.Usual(
                usual_scatter(fit.hessian),
                EXPONENT_SCATTER,
                np.full(2, TOKEN_CURVATURE_SCATTER),
                USUAL_SIZE_CURVATURE,
                USUAL_TOKEN_CURVATURE,
            ),
        )

    @property
    def _to_law(self) -> Array:
        """(6, terms): derivatives of the optimum's law."""
        inverse = np.linalg.inv(self.fit.hessian)
        centre = self.fit.centre._replace(log_rate=0.0, log_batch=0.0)
        law = optimum_law(self.fit.valley.coefficients, centre)[0].reshape(2, PER_QUANTITY)
        found = np.zeros((len(LawTerm), len(Shape)))
        found[:, Shape.X : Shape.Y_TOKENS + 1] = np.kron(-inverse, np.eye(PER_QUANTITY))
        for at, change in (
            (Shape.XX, [[1.0, 0.0], [0.0, 0.0]]),
            (Shape.XY, [[0.0, 1.0], [1.0, 0.0]]),
            (Shape.YY, [[0.0, 0.0], [0.0, 1.0]]),
        ):
            found[:, at] = (-inverse @ np.array(change) @ law).ravel()
        return found

    @cached_property
    def noise(self) -> Noise:
        """Of the points."""
        fit = self.fit
        squares, seeds = fit.replicate_noise
        per_token = float(np.average(1.0 / fit.scale**2, weights=fit.weights))
        return Noise.of_residuals(
            fit.valley.misfit,
            fit.levels,
            fit.runs,
            fit.valley.unknowns,
            fit.valley.taken,
            (per_token * squares, seeds),
        )
