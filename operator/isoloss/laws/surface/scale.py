"""How large a random effect is, when few groups show it and published sweeps say what is usual.

The scale s of an effect is its standard deviation over the usual one. Few groups leave it open within a
factor of several, and a mean of squares pooled with the usual one never falls far below that. So s has a
distribution: a half-Student prior, whose density does not vanish at zero (Gelman 2006, "Prior distributions
for variance parameters in hierarchical models"), times the likelihood of what the sweep shows. A sweep that follows
its law is then believed after few groups, and one that tells nothing keeps the usual scale.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.quantiles import student_quantiles

PRIOR_FREEDOM = 4.0
PRIOR_SCALE = 1.35
"""The median of a half-Student variable of 4 degrees of freedom times this is 1: published sweeps are usual."""
APART = 0.5
"""Standard deviation of ln s of one hyperparameter about what both share: published ones differ by 1.3 to 4 times."""
LEVEL = 0.8
"""Share of the effects that an effective standard deviation, times Student's quantile, is to hold."""
STEP = 0.08
"""Of ln s on the grid."""
SCALES = np.exp(STEP * np.arange(-50, 38))
"""0.02 to 19."""
FACTORS = np.arange(-18, 19)
"""Steps by which the scale of one hyperparameter differs from what both share."""


def effective_variance(
    squares: Array, noise: Array, usual: Array, seen: float, freedom: float, level: float = LEVEL
) -> Array:
    """(2,) variances of the effects on ln LR and ln B.

    `squares` (2,) are mean squares of estimated effects with `seen` degrees of freedom, `noise` (2,) the part of them
    that noise explains, `usual` (2,) the variances that published sweeps have. With Student's quantile of `freedom`, the
    root of the result holds the share `level` of further effects.
    """
    found = np.multiply.outer(usual, _every_scale() ** 2) + noise[:, None]
    likely = -0.5 * seen * (np.log(found) + squares[:, None] / found)
    reach = np.array([_reach(own, level) for own in _posteriors(likely)])
    student = student_quantiles(freedom, np.array([0.5 + level / 2]))[0]
    return np.asarray((reach / student) ** 2 * usual, dtype=float)


def _every_scale() -> Array:
    """SCALES, continued by FACTORS on both ends."""
    steps = np.arange(-50 + FACTORS[0], 38 + FACTORS[-1])
    return np.asarray(np.exp(STEP * steps))


def _posteriors(likely: Array) -> list[Array]:
    """Per hyperparameter the weights of _every_scale(), from log likelihoods (2, scales) there."""
    own = np.exp(likely - likely.max(axis=1, keepdims=True))
    apart = np.exp(-0.5 * (STEP * FACTORS / APART) ** 2)
    apart /= apart.sum()
    prior = SCALES * (1.0 + (SCALES / PRIOR_SCALE) ** 2 / PRIOR_FREEDOM) ** (
        -0.5 * (PRIOR_FREEDOM + 1.0)
    )
    # Row: the scale that both share; column: by what factor this one's differs.
    at = np.arange(len(SCALES))[:, None] + np.arange(len(FACTORS))[None, :]
    joint = [of_one[at] * apart for of_one in own]
    together = [part.sum(axis=1) for part in joint]
    weights = []
    for part, other in zip(joint, reversed(together), strict=True):
        found = np.bincount(at.ravel(), ((prior * other)[:, None] * part).ravel())
        weights.append(found / found.sum())
    return weights


def _reach(weights: Array, level: float) -> float:
    """Within which a share `level` of normal effects is, whose scales have these weights."""
    return float(np.interp(level, weights @ _held(), _every_scale()))


@cache
def _held() -> Array:
    """(scales, scales): how often |a normal variable| of the scale of the row is below that of the column."""
    ratios = np.log(_every_scale())
    normal = NormalDist()
    steps = np.arange(-len(ratios) + 1, len(ratios))
    shares = np.array([2.0 * normal.cdf(float(np.exp(STEP * k))) - 1.0 for k in steps])
    at = np.arange(len(ratios))
    return np.asarray(shares[at[None, :] - at[:, None] + len(ratios) - 1])
