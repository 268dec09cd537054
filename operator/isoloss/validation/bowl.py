"""Where the minimum of a bowl lies, given a few noisy losses on it.

L = m + (x - u)' H (x - u) / 2 over x = (ln LR, ln B): m unknown, u normal, H as the laws know it up to a common
factor, and each of its entries up to a share. Given u and that factor, the losses are linear in m and H, whose
integral is exact; u, which a box may bound, and the factor are on a grid. Draws from it are the posterior. If the losses' errors are known
within bounds alone, their scale is on the grid, too: how closely the losses follow any bowl tells of it.
"""

from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from isoloss.laws import Array

DRAWS = 2000
COARSE, FINE = 25, 31
"""Places per axis of the grid of u: over the prior, then over what the losses leave of it."""
NEGLIGIBLE = 1e-4
"""Share of the prior outside the coarse grid, and of the posterior outside the fine one, per side."""
REACH = -NormalDist().inv_cdf(NEGLIGIBLE)
"""Half the coarse grid, in standard deviations of the prior."""
LOG_FACTORS = np.log(2.0) * np.linspace(-2.4, 2.4, 7)
"""Factors of the curvature: a normal of standard deviation ln 2, cut off at a factor of 5."""
ENTRY_ERRORS = np.array([0.3, 0.25, 0.3])
"""Standard deviations of H's entries xx, xy, yy at a given factor; of xy as a share of sqrt(xx yy)."""
NOISE_SCALES = 5
"""Scales of the errors between their bounds, evenly in their logarithm, each as likely beforehand as it is large: with
equal probabilities 80% intervals held 73% when errors were as large as their bound."""
MISFIT = 0.1
"""Error of the bowl itself, as a share of a probe's height above the lowest one: valleys are no parabolas."""
ROUNDING = 1e-13
"""Nats squared that keep a covariance positive definite in floating point."""
ANY_LOSS = 1.0
"""Standard deviation of m, nats: anything."""


@dataclass(frozen=True)
class Normal:
    """Independent normals of ln LR and ln B."""

    mean: Array
    """(2,)."""
    deviation: Array
    """(2,) standard deviations."""


@dataclass(frozen=True)
class Box:
    """Bounds of ln LR and ln B, both outside; infinite where there is none."""

    low: Array = field(default_factory=lambda: np.full(2, -np.inf))
    """(2,)."""
    high: Array = field(default_factory=lambda: np.full(2, np.inf))
    """(2,)."""

    def holds(self, places: Array) -> NDArray[np.bool_]:
        """(...,) of places (..., 2)."""
        return np.asarray(np.all((places > self.low) & (places < self.high), axis=-1))

    @property
    def is_open(self) -> bool:
        """Whether there is no bound at all."""
        return not np.isfinite([self.low, self.high]).any()


EVERYWHERE = Box()


@dataclass(frozen=True)
class Bowls:
    """Draws of the bowl."""

    minimum: Array
    """(draws, 2) of u."""
    curvature: Array
    """(draws, 2, 2) of H, nats, positive definite."""


def bowls(
    places: Array,
    losses: Array,
    errors: Array,
    prior: Normal,
    curvature: Array,
    seed: int,
    *,
    least_errors: Array | None = None,
    within: Box = EVERYWHERE,
) -> Bowls:
    """Draws given `losses` (n,) with standard `errors` (n,) at `places` (n, 2), all finite.

    With `least_errors` (n,) `errors` are what they are at the most. `curvature` (2, 2) is what the laws know of H; the
    minimum is `within` a box. The draws depend on `seed` by their own scatter alone.
    """
    heights = losses - losses.min()
    scaled = (
        errors[None] if least_errors is None else np.geomspace(least_errors, errors, NOISE_SCALES)
    )
    variances = np.hypot(scaled, MISFIT * heights) ** 2
    data = _Data(places, heights, variances, np.log(scaled / errors).mean(axis=1), curvature)
    coarse = _Grid(prior.mean, REACH * prior.deviation, COARSE)
    if not within.holds(coarse.minima).any():
        return Bowls(np.zeros((0, 2)), np.zeros((0, 2, 2)))
    around = _bounds(coarse, _weights(data, coarse, prior, within).sum(axis=(1, 2)))
    fine = _Grid(*around, FINE)
    found = _drawn(data, fine, _weights(data, fine, prior, within), np.random.default_rng(seed))
    inside = within.holds(found.minimum)
    return Bowls(found.minimum[inside], found.curvature[inside])


@dataclass(frozen=True)
class _Data:
    places: Array
    heights: Array
    """(n,) losses less the lowest."""
    variances: Array
    """(s, n) of them, by each scale that the errors may have."""
    log_scales: Array
    """(s,) of these scales; 0: the errors are as given."""
    curvature: Array

    @property
    def entries(self) -> Array:
        """xx, xy, yy of H."""
        return self.curvature[[0, 0, 1], [0, 1, 1]]

    def prior_mean(self, factors: Array) -> Array:
        """(4, f) of m, xx, xy, yy."""
        return np.concatenate([np.zeros((1, len(factors))), self.entries[:, None] * factors])

    def prior_variance(self, factors: Array) -> Array:
        """(4, f)."""
        xx, _, yy = self.entries
        scale = ENTRY_ERRORS * np.array([xx, np.sqrt(xx * yy), yy])
        m = np.full((1, len(factors)), ANY_LOSS)
        return np.asarray(np.concatenate([m, scale[:, None] * factors]) ** 2, dtype=float)

    def design(self, minima: Array) -> Array:
        """(n, 4, k): losses are this times (m, xx, xy, yy) if the minimum is `minima` (k, 2)."""
        x, y = np.moveaxis(self.places[:, None] - minima, -1, 0)
        return np.stack([np.ones_like(x), 0.5 * x * x, x * y, 0.5 * y * y], axis=1)


@dataclass(frozen=True)
class _Grid:
    centre: Array
    half: Array
    count: int

    @property
    def step(self) -> Array:
        return np.asarray(2.0 * self.half / (self.count - 1), dtype=float)

    @property
    def minima(self) -> Array:
        """(count^2, 2)."""
        axes = [
            np.linspace(c - h, c + h, self.count)
            for c, h in zip(self.centre, self.half, strict=True)
        ]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def _weights(data: _Data, grid: _Grid, prior: Normal, within: Box) -> Array:
    """(places of the grid, factors, scales of the errors) posterior, its sum 1."""
    minima, factors, scales = grid.minima, np.exp(LOG_FACTORS), np.arange(len(data.variances))
    design = np.repeat(data.design(minima), len(factors) * len(scales), axis=-1)
    log_likelihood, _, _ = _regressed(
        data,
        design,
        np.tile(np.repeat(factors, len(scales)), len(minima)),
        np.tile(scales, len(minima) * len(factors)),
    )
    log_weights = log_likelihood.reshape(len(minima), len(factors), len(scales))
    log_weights = log_weights - 0.5 * (LOG_FACTORS / np.log(2.0))[:, None] ** 2
    distance = (minima - prior.mean) / prior.deviation
    log_weights -= 0.5 * (distance**2).sum(axis=1)[:, None, None]
    log_weights += data.log_scales
    log_weights[~within.holds(minima)] = -np.inf
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum(), dtype=float)


def _regressed(
    data: _Data, design: Array, factors: Array, scales: NDArray[np.intp]
) -> tuple[Array, Array, Array]:
    """Normal posteriors of (m, xx, xy, yy), one per design (n, 4, k): log likelihood (k,) apart from a constant, mean (4, k) and
    covariance (4, 4, k).

    Bayesian linear regression, one loss after another: arithmetic alone for any k. `scales` (k,) are rows of the variances. k comes
    last: whole rows of memory are added and multiplied.
    """
    mean = data.prior_mean(factors)
    covariance = data.prior_variance(factors) * np.eye(4)[:, :, None]
    log_likelihood = np.zeros(len(factors))
    for row, height, variance in zip(design, data.heights, data.variances[scales].T, strict=True):
        reach = np.einsum("ijk,jk->ik", covariance, row)
        spread = np.einsum("ik,ik->k", reach, row) + variance
        surprise = height - np.einsum("ik,ik->k", mean, row)
        log_likelihood -= 0.5 * (surprise**2 / spread + np.log(spread))
        gain = reach / spread
        mean = mean + gain * surprise
        covariance -= gain[:, None] * reach
    return log_likelihood, mean, covariance


def _bounds(grid: _Grid, weights: Array) -> tuple[Array, Array]:
    """Centre and half the extent of what holds nearly all of the posterior."""
    table = weights.reshape(grid.count, grid.count)
    axes = grid.minima.reshape(grid.count, grid.count, 2)
    low, high = np.empty(2), np.empty(2)
    for k, (values, marginal) in enumerate(
        ((axes[:, 0, 0], table.sum(axis=1)), (axes[0, :, 1], table.sum(axis=0)))
    ):
        reached = np.cumsum(marginal)
        low[k] = values[int(np.searchsorted(reached, NEGLIGIBLE))]
        high[k] = values[min(int(np.searchsorted(reached, 1.0 - NEGLIGIBLE)), grid.count - 1)]
    # A step more to either side: between two places of the coarse grid anything may be.
    return 0.5 * (low + high), 0.5 * (high - low) + grid.step


def _drawn(data: _Data, grid: _Grid, weights: Array, rng: np.random.Generator) -> Bowls:
    """Draws of minimum and curvature; those without a minimum are left out."""
    levels = (np.arange(DRAWS) + rng.random()) / DRAWS
    chosen = np.minimum(np.searchsorted(np.cumsum(weights.ravel()), levels), weights.size - 1)
    at, factor, scale = np.unravel_index(chosen, weights.shape)
    minima = grid.minima[at] + grid.step * (rng.random((DRAWS, 2)) - 0.5)
    _, mean, covariance = _regressed(data, data.design(minima), np.exp(LOG_FACTORS)[factor], scale)
    root = np.linalg.cholesky(np.moveaxis(covariance, -1, 0) + ROUNDING * np.eye(4))
    entries = mean.T + (root @ rng.standard_normal((DRAWS, 4, 1)))[..., 0]
    _, xx, xy, yy = entries.T
    kept = (xx > 0) & (xx * yy > xy**2)
    hessian = np.stack([xx, xy, xy, yy], axis=1).reshape(-1, 2, 2)
    return Bowls(minima[kept], hessian[kept])
