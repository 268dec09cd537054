"""How far a fitted law of the optimum may be off: one Gaussian model of everything that moves optima about it.

Weighted least squares give the law: with z the wasted ln D of a point at x, a level for each cell and b the coefficients,

    z = level + X b + Z r + e,        b~ = S z,        e noise of runs and points (Noise).

r are random effects, whose prior standard deviations are what is usual (usual.py). All but the last are shifts of an optimum,
ln LR or ln B, which add -(H x) times the shift to z; n = ln N and d = ln D are centred, `end` is where the runs of a size end:

    B n^2, C d^2         a law that is no line over ln N, over ln D                                USUAL_SIZE_CURVATURE, USUAL_TOKEN_CURVATURE
    k                    cubic terms of the valley that the fit does without                       USUAL_ASYMMETRY
    u_s, v_c             a size's, and a cell's of runs of its own, distance from the law          scatter
    w_s (d - end)        exponents of D that differ from size to size                              EXPONENT_SCATTER
    t_s (d - end)^2      bends over tokens that differ from size to size                           TOKEN_CURVATURE_SCATTER

The residuals show them: for each size the slope of its residuals over x, how that grows and bends over d, and the cubic terms,
y = R (z - X b~), which is linear in r and e. So r, the error b~ - b and y are jointly normal, and conditioning on y says
what this sweep leaves open (Gelman et al., Bayesian Data Analysis, ch. 14 and 15): three sizes without a bend are evidence against
one, three that scatter are evidence for scatter. The scale of u and v is unknown; its posterior is summed over a grid.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array, Indices
from isoloss.laws.least_squares import Levelled
from isoloss.laws.surface.noise import Noise
from isoloss.usual import MEAN_CURVATURE_SHARE, SHARED_SCATTER

SCALES = np.exp(np.linspace(np.log(0.05), np.log(5.0), 16))
"""Grid of the scale of u and v in usual ones, whose prior is half-normal with scale 1 (Gelman 2006)."""


@dataclass(frozen=True)
class Usual:
    """Prior covariances and standard deviations of what moves k optima."""

    scatter: Array
    """(k, k) covariance of a size's optimum about any law."""
    exponents: Array
    """(k,) of exponents of D from size to size."""
    token_curvatures: Array
    """(k,) of coefficients of (ln D)^2 from size to size."""
    size_curvature: float
    """Of the law's coefficients of (ln N)^2."""
    token_curvature: float
    """Of the law's coefficients of (ln D)^2."""


@dataclass(frozen=True)
class Shown:
    """y and the law's error as linear in effects and noise."""

    values: Array
    """(y,)"""
    of_effects: Array
    """(y, effects)"""
    noise: Array
    """(y, y)"""
    law_of_effects: Array
    """(m, effects)"""
    law_noise: Array
    """(m, m)"""
    cross: Array
    """(m, y) covariance of the noise in both."""


@dataclass(frozen=True)
class LinearFit:
    """Least squares through points, whose coefficients give a law of k optima with m terms in all."""

    solver: Array
    """(terms, points): from z to the coefficients."""
    design: Array
    """(points, terms)"""
    levels: Levelled
    residuals: Array
    """(points,)"""
    to_law: Array
    """(m, terms): derivatives of the law's terms with respect to the coefficients."""
    shifts: Array
    """(points, k): what a shift of an optimum adds to z."""
    log_params: Array
    """(points,) ln N, from the law's centre."""
    log_tokens: Array
    """(points,) ln D, likewise."""
    past_end: Array
    """(points,) ln D beyond where runs of that size usually end."""
    size: Indices
    """(points,)"""
    own_runs: bool
    """Whether every cell has runs of its own."""
    unseen: Array
    """(points, c) cubic terms that were not fitted, …"""
    unseen_variance: Array
    """… (c,) and the prior variances of their coefficients."""
    noise: Noise
    usual: Usual

    @property
    def count(self) -> int:
        """Optima: k."""
        return int(self.shifts.shape[1])

    @cached_property
    def sizes(self) -> list[Indices]:
        """The points of each size."""
        order = np.argsort(self.size, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.size))[:-1])

    @cached_property
    def shown(self) -> Shown:
        """What the residuals show."""
        return _shown(self)

    def effects(self) -> Iterator[tuple[Indices, Indices, Array]]:
        """Of each size (its points, which effects its points show, (points, these effects) their part of Z)."""
        common = 2 * self.count + self.unseen.shape[1]
        first = common
        for own in self.sizes:
            shifts, along = self.shifts[own], self.past_end[own]
            parts = [shifts]
            if self.own_runs:
                cells = np.unique(self.levels.group[own])
                parts += [shifts * (self.levels.group[own] == c)[:, None] for c in cells]
            else:
                parts += [shifts * along[:, None], shifts * along[:, None] ** 2]
            for_all = [
                shifts * self.log_params[own, None] ** 2,
                shifts * self.log_tokens[own, None] ** 2,
            ]
            columns = np.concatenate([*for_all, self.unseen[own], *parts], axis=1)
            count = columns.shape[1] - common
            yield own, np.r_[0:common, first : first + count], columns
            first += count

    def priors(self, scale: float) -> Array:
        """(effects, effects) covariance of r, where optima scatter by so many times what is usual."""
        usual, own = self.usual, scale**2 * self.usual.scatter
        bends = [usual.size_curvature**2] * self.count + [usual.token_curvature**2] * self.count
        blocks = [np.diag(np.concatenate([bends, self.unseen_variance]))]
        for points in self.sizes:
            if self.own_runs:
                cells = len(np.unique(self.levels.group[points]))
                blocks += [SHARED_SCATTER * own, *([(1.0 - SHARED_SCATTER) * own] * cells)]
            else:
                blocks += [own, np.diag(usual.exponents**2), np.diag(usual.token_curvatures**2)]
        ends = np.cumsum([len(block) for block in blocks])
        whole = np.zeros((ends[-1], ends[-1]))
        for end, block in zip(ends, blocks, strict=True):
            at = slice(end - len(block), end)
            whole[at, at] = block
        return whole


@dataclass(frozen=True)
class Posterior:
    """What the points leave open."""

    moments: Array
    """(m + 2 k, m + 2 k) second moments of the error of the law's m terms, and of B and C of each optimum."""
    mean: Array
    """(m + 2 k,)"""
    noise: Array
    """(m, m) covariance of the part of the law's error that noise explains."""
    scale: float
    """Root mean square of the scale of u and v."""

    @property
    def covariance(self) -> Array:
        """(m + 2 k, m + 2 k)"""
        return self.about(self.mean)

    def about(self, expected: Array) -> Array:
        """(m + 2 k, m + 2 k) second moments of what is left once `expected` (m + 2 k,) is taken off."""
        both = np.outer(self.mean, expected)
        return np.asarray(self.moments - both - both.T + np.outer(expected, expected), dtype=float)


def posterior(fit: LinearFit) -> Posterior:
    """Given what the residuals show."""
    shown = fit.shown
    k, terms = fit.count, len(fit.to_law)
    fixed, prior = fit.priors(0.0), fit.priors(1.0)
    scattered = prior - fixed
    free = _varying(shown.noise + shown.of_effects @ prior @ shown.of_effects.T)
    y, of_effects = free @ shown.values, free @ shown.of_effects
    noise = free @ shown.noise @ free.T
    asked = np.concatenate([shown.law_of_effects, np.eye(2 * k, len(prior))])
    asked_noise = np.zeros((terms + 2 * k, terms + 2 * k))
    asked_noise[:terms, :terms] = shown.law_noise
    cross = np.zeros((terms + 2 * k, len(y)))
    cross[:terms] = shown.cross @ free.T
    logs, means, moments = [], [], []
    for scale in SCALES:
        prior = fixed + scale**2 * scattered
        of_y = noise + of_effects @ prior @ of_effects.T
        between = asked @ prior @ of_effects.T + cross
        gain = np.linalg.solve(of_y, between.T).T
        mean = gain @ y
        before = asked @ prior @ asked.T + asked_noise
        likelihood = np.linalg.slogdet(of_y)[1] + y @ np.linalg.solve(of_y, y)
        # The prior's density over ln s, on whose grid the scales are.
        logs.append(np.log(scale) - 0.5 * scale**2 - 0.5 * likelihood)
        means.append(mean)
        moments.append(before - gain @ between.T + np.outer(mean, mean))
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    every = np.tensordot(weights, np.array(moments), axes=1)
    scale = float(np.sqrt(weights @ SCALES**2))
    mean = weights @ np.array(means)
    return Posterior(0.5 * (every + every.T), mean, shown.law_noise, scale)


def expected_curvatures(fit: LinearFit, scale: float) -> Array:
    """(2 k,) of B and C of each optimum, given what the residuals show, with as much of their variance as settings show in the mean and u
    and v so many times as usual."""
    prior, of = fit.priors(scale), slice(2 * fit.count)
    prior[of, of] *= MEAN_CURVATURE_SHARE
    return _given(fit.shown, prior, of)[0]


def drifts(fit: LinearFit, scale: float) -> Array:
    """(2, 2) second moments of the last two unseen coefficients, likewise."""
    last = slice(2 * fit.count + fit.unseen.shape[1] - 2, 2 * fit.count + fit.unseen.shape[1])
    mean, covariance = _given(fit.shown, fit.priors(scale), last)
    return np.asarray(covariance + np.outer(mean, mean), dtype=float)


def _given(shown: Shown, prior: Array, of: slice) -> tuple[Array, Array]:
    """(n,) means and (n, n) covariance of these effects, given what the residuals show."""
    free = _varying(shown.noise + shown.of_effects @ prior @ shown.of_effects.T)
    # These combinations vary by 1 each.
    gain = prior[of] @ (free @ shown.of_effects).T
    return gain @ (free @ shown.values), prior[of, of] - gain @ gain.T


def _shown(fit: LinearFit) -> Shown:
    terms, extra = len(fit.solver), fit.unseen.shape[1]
    every = fit.levels.solver(fit.design, fit.unseen)
    degree = 1 if fit.own_runs else 3
    rows = degree * fit.count
    total = terms + extra + rows * len(fit.sizes)
    effects = len(fit.priors(1.0))
    noise, of_effects = np.zeros((total, total)), np.zeros((total, effects))
    values, taken = np.zeros(total), np.zeros((total, terms))
    for index, (own, which, columns) in enumerate(fit.effects()):
        first = terms + extra + index * rows
        at = np.r_[0 : terms + extra, first : first + rows]
        # What both look at in all points: coefficients, and cubic terms beside them.
        shared = fit.solver[:, own], every[fit.design.shape[1] :, own]
        maps = np.concatenate([*shared, _reader(fit, own, degree)])
        noise[np.ix_(at, at)] += fit.noise.covariance(maps, own)
        of_effects[np.ix_(at, which)] += maps @ columns
        taken[at] += maps @ fit.design[own]
        values[at] += maps @ fit.residuals[own]
    # Of residuals, from which the fit has taken its part.
    residual = np.concatenate([-taken[terms:], np.eye(total - terms)], axis=1)
    return Shown(
        values[terms:],
        residual @ of_effects,
        residual @ noise @ residual.T,
        fit.to_law @ of_effects[:terms],
        fit.to_law @ noise[:terms, :terms] @ fit.to_law.T,
        fit.to_law @ noise[:terms] @ residual.T,
    )


def _reader(fit: LinearFit, own: Indices, degree: int) -> Array:
    """(degree k, points): from one size's values to the shifts of its optima, their growth and bend over ln D."""
    along = fit.past_end[own] - fit.past_end[own].mean()
    columns = [fit.shifts[own] * along[:, None] ** power for power in range(degree)]
    group = np.unique(fit.levels.group[own], return_inverse=True)[1]
    levels = Levelled(group, fit.levels.weights[own])
    return levels.solver(np.concatenate(columns, axis=1))


def _varying(covariance: Array) -> Array:
    """(j, n): the combinations of n statistics that vary at all, each with variance 1."""
    variances = np.diag(covariance)
    # A size of as many points as levels and slopes shows nothing: what is left there are rounding errors.
    at = np.flatnonzero(variances > ROUNDING * variances.max(initial=0.0))
    deviations = np.sqrt(variances[at])
    values, vectors = np.linalg.eigh(covariance[np.ix_(at, at)] / np.outer(deviations, deviations))
    kept = values > ROUNDING * values.max(initial=0.0)
    found = np.zeros((int(kept.sum()), len(covariance)))
    found[:, at] = (vectors[:, kept] / np.sqrt(values[kept])).T / deviations
    return found
