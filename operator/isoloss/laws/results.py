"""The parts of what a fit found: laws, optima, the evidence behind them, or the reasons why there is none.

Everything is frozen and made of numbers, strings and arrays, so that it can be stored as JSON and
drawn in a report. A refused part has no coefficients (None) and carries its `refusal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from isoloss.laws import arrays
from isoloss.laws.curves import (
    HyperparameterCurve,
    LossCurve,
    OptimumTrends,
    Quantity,
    RateAtBatch,
)
from isoloss.laws.model import (
    Interval,
    LawForm,
    Refusal,
    Status,
)
from isoloss.laws.quadratic import value_at, vertex_of
from isoloss.usual import (
    FRONTIER_EXPONENT_ERROR,
    MEAN_CURVATURE_SHARE,
    USUAL_SIZE_CURVATURE,
    USUAL_TOKEN_CURVATURE,
)

if TYPE_CHECKING:  # pyarrow takes a quarter of a second to import, and pandas more
    import pandas
    import pyarrow


@dataclass(frozen=True)
class HyperparameterLaw:
    """The optimal learning rate or batch size along the frontier of least compute, and how well it fits.

    `curve` has the formula.
    """

    quantity: Quantity
    status: Status
    form: LawForm
    intercept: arrays.Finite | None = None
    slope: arrays.Finite | None = None
    covariance: arrays.Covariance2 | None = None
    """(2, 2), of intercept and slope."""
    points: int = 0
    slope_interval: Interval | None = None
    refusal: Refusal | None = None

    @property
    def curve(self) -> HyperparameterCurve | None:
        """The law itself; None if it was refused."""
        if self.intercept is None or self.slope is None:
            return None
        return HyperparameterCurve(self.quantity, self.form, self.intercept, self.slope)


@dataclass(frozen=True)
class LossComputeLaw:
    """L(C) = L0 + alpha C^-gamma along the frontier of least compute."""

    status: Status
    irreducible_loss: arrays.NotNegative | None = None
    log_alpha: arrays.Finite | None = None
    """ln alpha; alpha alone can overflow when gamma is large."""
    gamma: arrays.Positive | None = None
    irreducible_loss_fixed: bool = False
    irreducible_loss_identified: bool = True
    """False: the data allow every value within `irreducible_loss_interval`."""
    rmse: arrays.Real | None = None
    """Residual of the loss, in nats per token."""
    points: int = 0
    irreducible_loss_interval: Interval | None = None
    gamma_interval: Interval | None = None
    refusal: Refusal | None = None

    @property
    def curve(self) -> LossCurve | None:
        """The law itself; None if it was refused."""
        if self.irreducible_loss is None or self.log_alpha is None or self.gamma is None:
            return None
        return LossCurve(self.irreducible_loss, self.log_alpha, self.gamma)


@dataclass(frozen=True)
class Optimum:
    """The batch size and learning rate that reach a loss with the fewest tokens (or FLOPs).

    The numbers are None if refused. `covariance` is that of (ln LR, ln B), for ellipses.
    """

    loss: arrays.Positive
    params: arrays.Positive | None
    """None on the frontier if no size reaches the loss."""
    status: Status
    learning_rate: arrays.Positive | None = None
    batch_size: arrays.Positive | None = None
    """Sequences, not rounded."""
    tokens: arrays.Positive | None = None
    flops: arrays.Positive | None = None
    standard_errors: dict[str, arrays.Real] = field(default_factory=dict)
    """Keyed by learning_rate, batch_size and tokens: standard errors of their logarithms."""
    covariance: arrays.Covariance2 | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Contour:
    """The iso-loss surface ln D(B, LR) of one size at one loss, with its fitted quadratic.

    ln D = c0 + c1 x + c2 y + c3 x^2 + c4 x y + c5 y^2,
    x = ln LR - centre[0], y = ln B - centre[1].
    """

    loss: arrays.Positive
    params: arrays.Positive
    run_names: tuple[str, ...]
    learning_rates: arrays.Positives
    batch_sizes: arrays.Positives
    log_tokens: arrays.Array
    """Where the run reached the loss; where it did not, the bound it gives (see `bounds`)."""
    bounds: tuple[bool, ...]
    """True: the run did not reach the loss, ln D is larger than `log_tokens`."""
    weights: arrays.Array
    """Weight in the quadratic; 0 is unused."""
    centre: arrays.Vector2 | None = None
    coefficients: arrays.Vector6 | None = None
    residual_rms: arrays.Real | None = None
    """Residual of ln D over the points used."""

    def at(self, log_rate: arrays.Array, log_batch: arrays.Array) -> arrays.Array:
        """ln D of the quadratic, which must have been fitted, at ln LR, ln B."""
        assert self.coefficients is not None and self.centre is not None  # noqa: PT018
        return value_at(self.coefficients, self.centre, log_rate, log_batch)

    @property
    def lowest(self) -> float:
        """ln D at its vertex."""
        assert self.coefficients is not None and self.centre is not None  # noqa: PT018
        return float(vertex_of(self.coefficients, self.centre)[1])


@dataclass(frozen=True)
class LawError:
    """How far optima may be off a law of m terms for k of them: see surface/random_effects.py."""

    moments: arrays.Moments
    """(m + 2 k, m + 2 k) second moments of the error of the law's terms, then of how far coefficients of (ln N)^2 and of (ln D)^2 of each
    optimum are from those of the law, 0 if it has none."""
    noise: arrays.Moments
    """(m, m) the part of it that the noise of the runs explains, of the law's terms."""
    scatter: arrays.Moments
    """(k, k) covariance of a size's optimum about any law."""
    exponents: arrays.Deviations
    """(k,) standard deviations of exponents of D from size to size."""
    token_curvatures: arrays.Deviations
    """(k,) standard deviations of coefficients of (ln D)^2 from size to size."""
    log_params_centre: arrays.Finite
    log_tokens_centre: arrays.Finite
    end: arrays.Vector2
    """Intercept and slope of ln D at the end of a size's runs over ln N, both from the centre."""

    def at(self, terms: arrays.Array, log_params: float, log_tokens: float) -> arrays.Array:
        """(k, k) second moments of the error of a new size's optimum; `terms` (k, m) times the law's terms are the optimum."""
        n, d = log_params - self.log_params_centre, log_tokens - self.log_tokens_centre
        past = d - self.end[0] - self.end[1] * n
        unit = np.eye(len(terms))
        row = np.concatenate([terms, -(n**2) * unit, -(d**2) * unit], axis=1)
        own = (self.exponents * past) ** 2 + (self.token_curvatures * past**2) ** 2
        return np.asarray(row @ self.moments @ row.T + self.scatter + np.diag(own), dtype=float)

    @property
    def in_the_mean(self) -> LawError:
        """With as much of the usual curvatures' variance as settings show in the mean. Intervals have to hold nearly all settings, and
        keep all of it; what an answer is expected to waste would be several times what answers do waste."""
        of = slice(len(self.noise), None)
        usual = np.repeat([USUAL_SIZE_CURVATURE, USUAL_TOKEN_CURVATURE], len(self.scatter)) ** 2
        # As an observation of no curvature that leaves such a share of the usual variance.
        seen = usual * MEAN_CURVATURE_SHARE / (1.0 - MEAN_CURVATURE_SHARE)
        gain = np.linalg.solve(self.moments[of, of] + np.diag(seen), self.moments[of]).T
        return replace(self, moments=self.moments - gain @ self.moments[of])


@dataclass(frozen=True)
class SurfaceLaw:
    """The joint surface: one surface of loss over (N, D, B, LR) fitted to all runs at once."""

    status: Status
    optimum: OptimumTrends | None = None
    """Where it is lowest; None if it was refused."""
    curvature: arrays.Covariance2 | None = None
    """(2, 2) Hessian of the loss in (ln LR, ln B), in units of the token slope dL/dlnD."""
    residual_rms: arrays.NotNegative | None = None
    """Residual of the loss, in nats per token."""
    frontier_log_ratio: arrays.Finite | None = None
    """ln(D / N) of the compute-optimal size, found at …"""
    frontier_log_flops: arrays.Finite | None = None
    """… this ln C, and …"""
    frontier_ratio_error: arrays.NotNegative = 0.0
    """… its standard deviation there, which grows with the distance."""
    flops_per_token_per_param: arrays.Positive = 6.0
    cells: int = 0
    points: int = 0
    error: LawError | None = None
    """Of the optimum's terms: constant, of_params, of_tokens of ln LR, then of ln B."""
    token_slope: arrays.Finite | None = None
    """-dL/dlnD of the largest size at its most tokens, nats: what a wasted share of tokens costs."""
    halved_trends: tuple[Quantity, ...] = ()
    """Whose trend over sizes at equal tokens may be chance, judging by the largest size: half of it is kept."""
    refusal: Refusal | None = None

    def error_at(self, log_params: float, log_tokens: float) -> arrays.Array:
        """(2, 2) second moments of the error of ln LR and ln B at a size and tokens; the surface must stand."""
        assert self.error is not None
        return self.error.at(self._terms(log_params, log_tokens), log_params, log_tokens)

    def mean_error_at(self, log_params: float, log_tokens: float) -> arrays.Array:
        """(2, 2) the same as settings have it in the mean."""
        assert self.error is not None
        terms = self._terms(log_params, log_tokens)
        return self.error.in_the_mean.at(terms, log_params, log_tokens)

    def noise_at(self, log_params: float, log_tokens: float) -> arrays.Array:
        """(2, 2) the part of it that the noise of the runs explains."""
        assert self.error is not None
        terms = self._terms(log_params, log_tokens)
        return np.asarray(terms @ self.error.noise @ terms.T, dtype=float)

    def _terms(self, log_params: float, log_tokens: float) -> arrays.Array:
        """(2, 6): ln LR and ln B are this times the optimum's terms, squares apart."""
        assert self.optimum is not None
        n = log_params - self.optimum.log_params_centre
        d = log_tokens - self.optimum.log_tokens_centre
        return np.kron(np.eye(2), np.array([[1.0, n, d]]))

    def on_the_frontier(self, log_flops: arrays.Array) -> tuple[arrays.Array, arrays.Array] | None:
        """(ln N, ln D) at ln C on the sweep's own ratio of tokens to parameters, if that is known."""
        if self.frontier_log_ratio is None:
            return None
        per_param = np.log(self.flops_per_token_per_param)
        n = np.asarray(0.5 * (log_flops - per_param - self.frontier_log_ratio), dtype=float)
        return n, n + self.frontier_log_ratio

    def frontier_error(self, log_flops: float) -> arrays.Array:
        """(2,) by how much ln LR and ln B at ln C on the frontier err because its ratio does, in standard deviations of that.

        At equal compute a larger ratio is fewer parameters and as many more tokens; both err together.
        """
        there = self.on_the_frontier(np.asarray(log_flops))
        if self.optimum is None or self.frontier_log_flops is None or there is None:
            return np.zeros(2)
        far = FRONTIER_EXPONENT_ERROR * (log_flops - self.frontier_log_flops)
        error = np.hypot(self.frontier_ratio_error, far)
        exponents = self.optimum.exponents(float(there[0]), float(there[1]))
        moved = [0.5 * (of_tokens - of_params) for of_params, of_tokens in exponents]
        return np.asarray(error * np.array(moved), dtype=float)


@dataclass(frozen=True)
class RateAtBatchLaw:
    """The best learning rate at a batch size that is given, whatever the best batch size is."""

    status: Status
    curve: RateAtBatch | None = None
    """None if it was refused."""
    curvature: arrays.Positive | None = None
    """Second derivative of the wasted ln D over ln LR at a batch size."""
    error: LawError | None = None
    """Of the curve's terms, in their order."""
    smallest_batch: arrays.Positive | None = None
    largest_batch: arrays.Positive | None = None
    """Sequences, of those with enough learning rates."""
    shows_batch: bool = False
    """Whether sizes were trained with several batch sizes, so that it is known how the best learning rate moves."""
    shows_tokens: bool = True
    """False: what tokens change is taken as usual."""
    shows_params: bool = True
    """Whether there are two sizes; if not, it answers at the one that was trained alone."""
    refusal: Refusal | None = None

    def variances(
        self, log_params: float, log_tokens: float, log_batch: float
    ) -> tuple[float, float, float]:
        """Second moment of the error of the best ln LR, the same as settings have it in the mean, and the part that the noise of the
        runs explains; the law must stand."""
        curve, error = self.curve, self.error
        assert curve is not None and error is not None  # noqa: PT018  (of one law)
        terms = curve.terms(log_params, log_tokens, log_batch)[None, :]
        whole = error.at(terms, log_params, log_tokens)
        mean = error.in_the_mean.at(terms, log_params, log_tokens)
        return float(whole[0, 0]), float(mean[0, 0]), float((terms @ error.noise @ terms.T)[0, 0])


@dataclass(frozen=True)
class Exclusion:
    """A run, or a part of it, that did not take part, and why."""

    run: str
    reason: str


@dataclass(frozen=True)
class StableRate:
    """How large a learning rate one size and batch size of the sweep bore."""

    params: arrays.Positive
    batch_size: arrays.Positive
    """Sequences."""
    highest: arrays.Positive
    """The largest learning rate whose run did not diverge."""
    diverged: arrays.Positive | None = None
    """The smallest above it, whose run did; None: none was tried."""


@dataclass(frozen=True)
class DataRange:
    """What the data cover; extrapolation is measured from here."""

    runs: int = 0
    evaluations: int = 0
    sizes: tuple[arrays.Positive, ...] = ()
    batch_sizes: tuple[arrays.Positive, ...] = ()
    learning_rates: tuple[arrays.Positive, ...] = ()
    smallest_flops: arrays.Positive | None = None
    """On the fitted frontier; None without one."""
    largest_flops: arrays.Positive | None = None
    """The most that several runs of one size were trained for."""
    lowest_loss: arrays.Positive | None = None
    """Lowest loss of an optimum on the frontier."""
    highest_loss: arrays.Positive | None = None
    """Highest loss evaluated."""
    largest_tokens: arrays.Positive | None = None
    smallest_tokens: arrays.Positive | None = None
    """Smallest token count of a first evaluation that was used."""
    stable_rates: tuple[StableRate, ...] = ()
    """Of every size and batch size of which a run did not diverge."""


@dataclass(frozen=True)
class Draws:
    """Bootstrap draws of the iso-loss laws, thinned to what predictions need; None if a law was refused."""

    learning_rate: HyperparameterCurve | None = None
    batch_size: HyperparameterCurve | None = None
    loss_compute: LossCurve | None = None


def as_arrow(rows: Sequence[Mapping[str, Any]], heads: Sequence[str] = ()) -> pyarrow.Table:
    """A table of these rows; `heads` are its columns if there is none."""
    import pyarrow

    if not rows:
        return pyarrow.table({head: pyarrow.array([], pyarrow.string()) for head in heads})
    return pyarrow.Table.from_pylist(list(rows))


def as_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Raises ModuleNotFoundError, which says what to do, if pandas is not installed."""
    try:
        return table.to_pandas()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_pandas needs pandas: pip install pandas. to_arrow gives the same table without it",
            name=error.name,
        ) from error
