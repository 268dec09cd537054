"""How large a random effect is, when few groups show it and published sweeps say what is usual.

The scale s of an effect is its standard deviation over the usual one. Few groups leave it open within a
factor of several, and a mean of squares pooled with the usual one never falls far below that. So s has a
distribution: a half-normal prior, whose density does not vanish at zero (Gelman 2006, "Prior distributions
for variance parameters in hierarchical models"), times the likelihood of what the sweep shows. A sweep that follows
its law is then believed after few groups, and one that tells nothing keeps the usual scale.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.quantiles import student_quantiles

PRIOR_SCALE = 1.36
"""Scale of the half-normal prior: 80 % of the effects of an uninformative sweep are within 1.5 usual deviations."""
APART = 0.5
"""Standard deviation of ln s of one hyperparameter about what both share: published ones differ by 1.3 to 4 times."""
LEVEL = 0.8
"""Share of the effects that an effective standard deviation, times Student's quantile, is to hold."""
STEP = 0.08
"""Grid step of ln s."""
FARTHEST = 18
"""Steps by which the scale of one hyperparameter differs from what both share, at most: three standard deviations."""
SHARED = np.exp(STEP * np.arange(-50, 38))
"""0.02 to 19: of what both share, and …"""
OWN = np.exp(STEP * np.arange(-50 - FARTHEST, 38 + FARTHEST))
"""… of one hyperparameter."""


def effective_variance(
    squares: Array, noise: Array, usual: Array, seen: float, freedom: float
) -> Array:
    """(2,) variances of the effects on ln LR and ln B.

    `squares` (2,) are mean squares of estimated effects with `seen` degrees of freedom, `noise` (2,) the part of them
    that noise explains, `usual` (2,) the variances that published sweeps have. With Student's quantile of `freedom`, the
    root of the result holds the share LEVEL of further effects.
    """
    found = np.multiply.outer(usual, OWN**2) + noise[:, None]
    likely = -0.5 * seen * (np.log(found) + squares[:, None] / found)
    reach = np.array([_reach(own) for own in _posteriors(likely)])
    student = student_quantiles(freedom, np.array([0.5 + LEVEL / 2]))[0]
    return np.asarray((reach / student) ** 2 * usual, dtype=float)


def scale_prior() -> Array:
    """(scales,) weights of SHARED, not normalised: the density is over ln s, on whose grid they are."""
    return np.asarray(SHARED * np.exp(-0.5 * (SHARED / PRIOR_SCALE) ** 2))


def _posteriors(likely: Array) -> list[Array]:
    """Per hyperparameter the weights of OWN, from log likelihoods (2, scales) there."""
    own = np.exp(likely - likely.max(axis=1, keepdims=True))
    factors = np.exp(-0.5 * (STEP * np.arange(-FARTHEST, FARTHEST + 1) / APART) ** 2)
    factors /= factors.sum()
    prior = scale_prior()
    # Row: the scale that both share; column: by what factor this one's differs.
    at = np.add.outer(np.arange(len(SHARED)), np.arange(len(factors)))
    joint = [of_one[at] * factors for of_one in own]
    together = [part.sum(axis=1) for part in joint]
    weights = []
    for part, other in zip(joint, reversed(together), strict=True):
        found = np.bincount(at.ravel(), ((prior * other)[:, None] * part).ravel())
        weights.append(found / found.sum())
    return weights


def _reach(weights: Array) -> float:
    """Within which a share LEVEL of normal effects is, whose scales have these weights."""
    return float(np.interp(LEVEL, weights @ _held(), OWN))


@cache
def _held() -> Array:
    """(scales, scales): how often |a normal variable| of the scale of the row is below that of the column."""
    last = len(OWN) - 1
    ratios = np.exp(STEP * np.arange(-last, last + 1))
    shares = np.array([2.0 * NormalDist().cdf(float(ratio)) - 1.0 for ratio in ratios])
    steps = np.arange(len(OWN))
    return np.asarray(shares[np.subtract.outer(-steps, -steps) + last])
