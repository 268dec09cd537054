"""How well the joint surface is known: its noise, the scatter of cells and sizes, the shape of its valley.

The model of a point i of run r, in cell c (size s, tokens d), with x = (ln LR, ln B) and n = ln N, all centred:

    z_i = level_c + x'Hx/2 + x'(p + n P_n + d P_d  +  u_s + v_c + (d - end_n) w_s)  +  e_r + e_i

    u_s, v_c   slopes of a size and of a cell about the law      form_error.scatter
    w_s        exponents of D that differ from size to size      form_error.exponent_scatter
    e_r, e_i   noise of a run, and of a point                    Uncertainty._noise
    cubic terms of x that were not fitted                        skew.py, SurfaceFit.unseen_asymmetry

The coefficients b are solver @ z, so an effect with spread t on the points that share it adds
(solver @ x) t^2 (solver @ x)' to their covariance. How large t is, when few groups show it: scale.py. A target adds
effects of its own, u_s and v_c turned into a shift of its optimum by -1/H (`Scatter.of_optimum`), and a law that bends between the
sweep's sizes and tokens and its own (bend.py). What is published of two exponents joins the law at the end (UsualExponents). `draw` has all that concerns b,
`laws` what follows for a target's law; `target_covariance`, `bend` and `token_bend` have what one optimum deviates by.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from isoloss.laws.arrays import Array, Flags
from isoloss.laws.bootstrap import DrawSource
from isoloss.laws.least_squares import shared_variance
from isoloss.laws.results import Bend, TokenBend
from isoloss.laws.surface.bend import OwnBends, possible_bend, possible_token_bend
from isoloss.laws.surface.form_error import (
    Residuals,
    Scatter,
    bend_solvers,
    coefficient_covariance,
    exponent_covariance,
    exponent_scatter,
    mean_variance,
    scatter,
    scatter_freedom,
    shared_by_size,
    size_slopes,
    usual_scatter,
)
from isoloss.laws.surface.joint_fit import SurfaceFit
from isoloss.laws.surface.terms import PER_QUANTITY, LawTerm, Shape, optimum_law
from isoloss.usual import BATCH_EXPONENT_ERRORS, USUAL_BATCH_EXPONENTS

OBSERVED = [LawTerm.BATCH_OF_PARAMS, LawTerm.BATCH_OF_TOKENS]


@dataclass(frozen=True)
class Uncertainty:
    """Uncertainty of one fit; everything is computed when first asked for."""

    fit: SurfaceFit
    longer_bend: TokenBend | None = None
    """What the law through a longer part of the runs may bend by, if they were cut twice (token_range.py)."""

    @cached_property
    def scatter(self) -> Scatter:
        """How far cells and sizes deviate from the law."""
        return scatter(self._left_over, self.fit.sizes, self.fit.hessian, PER_QUANTITY)

    @cached_property
    def law(self) -> Array:
        """(6,) the optimum's law, see LawTerm; the fit must be convex."""
        return self.usual_exponents.law(optimum_law(self.fit.coefficients, self.fit.centre)[0])

    @cached_property
    def usual_exponents(self) -> UsualExponents:
        """What is known of exponents from elsewhere; the fit must be convex."""
        return UsualExponents(self._fitted_covariance)

    @cached_property
    def law_covariance(self) -> Array:
        """(6, 6) of `law` at the fitted curvature, which must be convex.

        In the mean: for deciding about the law's terms.
        """
        fit, turn = self.fit, self._of_slopes
        spread = scatter(
            self._left_over, fit.sizes, fit.hessian, PER_QUANTITY, measure=mean_variance
        )
        covariance = self._noise[0] + coefficient_covariance(
            fit.solver, self._left_over, fit.sizes, spread
        )
        return self.usual_exponents.covariance_after(turn @ covariance @ turn.T)

    @property
    def _of_slopes(self) -> Array:
        """(6, 9) by how much the law's coefficients move with those of the surface, the curvature being as it is."""
        turn = np.zeros((len(LawTerm), len(Shape)))
        turn[:, Shape.X :] = np.kron(-np.linalg.inv(self.fit.hessian), np.eye(PER_QUANTITY))
        return turn

    @cached_property
    def optimum_covariance(self) -> Array:
        """(6, 6) of `law` at a target, the curvature's own error included; the fit must be convex."""
        after = self.usual_exponents.covariance_after(self._fitted_covariance)
        return after + self._own_exponents

    @cached_property
    def _fitted_covariance(self) -> Array:
        """(6, 6) of the law that was fitted, the curvature's own error included."""
        inverse = np.linalg.inv(self.fit.hessian)
        law = optimum_law(
            self.fit.coefficients, self.fit.centre._replace(log_rate=0.0, log_batch=0.0)
        )[0]
        turn = self._of_slopes
        by_term = law.reshape(2, PER_QUANTITY)
        for at, change in (
            (Shape.XX, [[1.0, 0.0], [0.0, 0.0]]),
            (Shape.XY, [[0.0, 1.0], [1.0, 0.0]]),
            (Shape.YY, [[0.0, 0.0], [0.0, 1.0]]),
        ):
            turn[:, at] = (-inverse @ np.array(change) @ by_term).ravel()
        covariance = self._noise[0] + self._form_covariance
        return np.asarray(turn @ covariance @ turn.T, dtype=float)

    @cached_property
    def target_covariance(self) -> Array:
        """(2, 2) of ln LR and ln B of an optimum that was not seen about the law; the fit must be convex."""
        return self.scatter.of_optimum(self.fit.hessian)

    @cached_property
    def bend(self) -> Bend:
        """What the law of ln LR and ln B may bend by over sizes; the fit must be convex."""
        sizes, hessian = self.fit.sizes, self.fit.hessian
        slopes, noise = size_slopes(self._left_over, sizes, hessian)
        turn = np.linalg.inv(hessian)
        usual = shared_by_size(self._left_over) * usual_scatter(hessian)
        log_params = np.array(list(dict.fromkeys(sizes)))
        return possible_bend(
            log_params, -slopes @ turn.T, noise @ (turn**2).T, usual @ (turn**2).T
        )

    @cached_property
    def token_bend(self) -> TokenBend:
        """What the law of ln LR and ln B may bend by over tokens; the fit must be convex."""
        if self.longer_bend is not None:
            # The short part's line is better, but its bend is lost in noise, and the error falls by less than a smaller one would say.
            return self.longer_bend
        log_params = np.array(self.fit.sizes)[self.fit.cell]
        return possible_token_bend(
            log_params, self.fit.log_tokens, self.fit.weights, self.own_bends
        )

    @cached_property
    def own_bends(self) -> OwnBends:
        """What every size's own optimum bends by over ln D; the fit must be convex."""
        fit = self.fit
        solvers = bend_solvers(self._left_over, fit.sizes, fit.past_end)
        turn = -np.linalg.inv(fit.hessian)
        shown = np.array([turn @ solver @ fit.residuals for solver in solvers]).reshape(-1, 2)
        noise = [np.diag(self._noise_of(turn @ solver)) for solver in solvers]
        return OwnBends(shown, np.array(noise).reshape(-1, 2))

    def deviation_scales(self, source: DrawSource) -> Array:
        """(draws,) 1 of the estimate: by what factor optima deviate more from any law than they are expected to.

        Student's: few sizes leave it open. A draw has one for the law that was fitted to such optima and for the target's.
        """
        return source.scales(scatter_freedom(len(set(self.fit.sizes))))

    def draw(self, source: DrawSource, scales: Array) -> Array:
        """(draws, 9) coefficients; draw 0 is the estimate. The scatter blurs them in addition to the noise."""
        noise, freedom = self._noise
        errors = source.scales(freedom)[:, None] * source.correlated(noise)
        errors += scales[:, None] * source.correlated(self._form_covariance)
        return np.asarray(self.fit.coefficients + errors, dtype=float)

    def laws(self, coefficients: Array, source: DrawSource, scales: Array) -> tuple[Array, Flags]:
        """(law (draws, 6), convex (draws,)) of a target, of such draws."""
        law, convex = optimum_law(coefficients, self.fit.centre)
        if self.fit.is_convex:
            law = self.usual_exponents.law(law, source.normal(len(OBSERVED)))
            law += scales[:, None] * source.correlated(self._own_exponents)
        return law, convex

    @cached_property
    def _left_over(self) -> Residuals:
        fit = self.fit
        variance = float((fit.weights * fit.residuals**2).sum())
        variance /= max(len(fit.residuals) - fit.unknowns, 1.0)
        own_runs = len(set(fit.runs.tolist())) / len(fit.runs)
        return Residuals(fit.positions, fit.cell, fit.residuals, fit.weights, variance, own_runs)

    @cached_property
    def _noise(self) -> tuple[Array, float]:
        """((9, 9), its degrees of freedom)."""
        return self._noise_of(self.fit.solver), self._noise_variances[2]

    def _noise_of(self, solver: Array) -> Array:
        """(n, n) covariance of solver @ ln D for a solver (n, points)."""
        shared, total, _ = self._noise_variances
        _, member = np.unique(self.fit.runs, return_inverse=True)
        gain = solver * np.sqrt(self._variances(total) / total)
        runs = np.zeros((len(solver), int(member.max()) + 1))
        np.add.at(runs.T, member, gain.T)
        return np.asarray(shared * runs @ runs.T + (total - shared) * gain @ gain.T, dtype=float)

    @cached_property
    def _noise_variances(self) -> tuple[float, float, float]:
        """(what points of one run share, in total, degrees of freedom of the former), at weight 1."""
        fit = self.fit
        scaled = fit.residuals * np.sqrt(fit.weights)
        _, member = np.unique(fit.runs, return_inverse=True)
        count = int(member.max()) + 1
        total = float((scaled**2).sum() / max(len(scaled) - fit.unknowns, 1.0))
        # Nine coefficients and a level per size were fitted to the errors that whole runs share.
        freedom = max(float(count - len(Shape) - len(set(fit.sizes))), 2.0)
        shared = max(shared_variance(scaled, member) * count / freedom, 0.0)
        shared = min(shared, total * count / freedom)
        squares, seeds = fit.replicate_noise
        per_token = float(np.average(1.0 / fit.scale**2, weights=fit.weights))
        shared = (freedom * shared + per_token * squares) / (freedom + seeds)
        freedom += seeds
        total = max(total, shared)
        return shared, total, freedom

    @cached_property
    def _form_covariance(self) -> Array:
        """(9, 9) of the coefficients: what the scatter of cells and sizes about the law does to them, what a valley that is no
        parabola does, and exponents of D that differ by size."""
        fit = self.fit
        if not fit.is_convex:
            return np.zeros((len(Shape), len(Shape)))
        of_scatter = coefficient_covariance(fit.solver, self._left_over, fit.sizes, self.scatter)
        of_exponents = exponent_covariance(
            fit.solver, self._left_over, fit.sizes, fit.past_end, self._exponent_scatter
        )
        return np.asarray(of_scatter + fit.unseen_asymmetry + of_exponents)

    @cached_property
    def _exponent_scatter(self) -> Array:
        fit = self.fit
        return exponent_scatter(self._left_over, fit.sizes, fit.hessian, fit.past_end)

    @cached_property
    def _own_exponents(self) -> Array:
        """(6, 6): a target's exponents of D differ, too, by what grows with the distance from where runs usually end."""
        start, slope = self.fit.end
        of_end = np.array([start, slope, -1.0])
        turned = np.linalg.inv(self.fit.hessian) * self._exponent_scatter
        return np.asarray(np.kron(turned @ turned.T, np.outer(of_end, of_end)))

    def _variances(self, scaled: float) -> Array:
        """(points,) of ln D, from that of points scaled to weight 1.

        Weights fall with the distance from the optimum because the parabola errs there. Noise does not
        fall towards the optimum, though: no point is better known than those near it prove to be.
        """
        fit = self.fit
        taken = len(fit.weights) - fit.unknowns
        near = float((fit.weights * fit.residuals**2).sum() / fit.weights.sum())
        near *= len(fit.weights) / max(taken, 1.0)
        return np.maximum(scaled / fit.weights, near)


@dataclass(frozen=True)
class UsualExponents:
    """What is published of the exponents of N and D that the best batch size follows, as two more observations of them.

    A grid of a few batch sizes, read along runs that are short for their warm-up or noisy, leaves these exponents open within
    several tenths, and every answer far from the grid's own sizes and tokens with them. Published ones agree better:

        b ~ N(USUAL_BATCH_EXPONENTS, BATCH_EXPONENT_ERRORS^2),   law ~ N(fitted, covariance)

    so that the law given both is the fitted one, moved by its covariance with b over that of b and of what is published. What
    goes with the exponents moves along: the level of the batch size, and the learning rate, because valleys are ridges along both. A
    sweep that shows its exponents keeps them.
    """

    covariance: Array
    """(6, 6), of the fitted law."""

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
