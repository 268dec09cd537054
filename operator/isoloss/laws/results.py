"""What a fit found: laws, optima, the evidence behind them, or the reasons why there is none.

Everything is frozen and made of numbers, strings and arrays, so that it can be stored as JSON and
drawn in a report. A refused part has no coefficients (None) and carries its `refusal`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from isoloss.laws.model import (
    Array,
    FitOptions,
    Interval,
    LawForm,
    Refusal,
    Route,
    Status,
)

Quantity = Literal["learning_rate", "batch_size"]


@dataclass(frozen=True)
class HyperparameterLaw:
    """The optimal learning rate or batch size along the frontier of least compute.

    PowerLawOfLoss: ln x = intercept + slope ln L.
    LinearInLogCompute: ln C = intercept + slope y, with y = ln LR or y = B in sequences (the form of
    the paper's appendix).
    """

    quantity: Quantity
    status: Status
    form: LawForm
    intercept: float | None = None
    slope: float | None = None
    covariance: Array | None = None
    """(2, 2), of intercept and slope."""
    r_squared: float | None = None
    rmse: float | None = None
    """Of ln x (PowerLawOfLoss, learning rates) or of B in sequences (LinearInLogCompute)."""
    points: int = 0
    slope_interval: Interval | None = None
    refusal: Refusal | None = None

    def value(self, loss: float | Array, log_compute: float | Array) -> Array:
        """The optimum at a loss (nats per token) and ln FLOPs; the form decides which is used.

        Raises ValueError where the law was refused.
        """
        if self.intercept is None or self.slope is None:
            raise ValueError(f"the {self.quantity} law was refused")
        return evaluate_form(
            self.quantity, self.form, self.intercept, self.slope, loss, log_compute
        )


def evaluate_form(
    quantity: Quantity,
    form: LawForm,
    intercept: float | Array,
    slope: float | Array,
    loss: float | Array,
    log_compute: float | Array,
) -> Array:
    """A hyperparameter law's value; arrays broadcast (one entry per bootstrap draw)."""
    if form == "PowerLawOfLoss":
        return np.asarray(np.exp(intercept + slope * np.log(loss)), dtype=float)
    y = (np.asarray(log_compute) - intercept) / slope
    return np.asarray(np.exp(y) if quantity == "learning_rate" else y, dtype=float)


@dataclass(frozen=True)
class LossComputeLaw:
    """L(C) = L0 + alpha C^-gamma along the frontier of least compute."""

    status: Status
    irreducible_loss: float | None = None
    log_alpha: float | None = None
    """ln alpha; alpha alone can overflow where gamma is large."""
    gamma: float | None = None
    irreducible_loss_fixed: bool = False
    irreducible_loss_identified: bool = True
    """False: the data allow every value within `irreducible_loss_interval`."""
    rmse: float | None = None
    """Of the loss, in nats per token."""
    r_squared: float | None = None
    points: int = 0
    irreducible_loss_interval: Interval | None = None
    alpha_interval: Interval | None = None
    gamma_interval: Interval | None = None
    rmse_without_irreducible_loss: float | None = None
    """Of the same fit with L0 = 0, to compare."""
    refusal: Refusal | None = None

    @property
    def alpha(self) -> float | None:
        """The coefficient of C^-gamma, in nats times FLOPs^gamma."""
        return None if self.log_alpha is None else float(np.exp(self.log_alpha))

    def loss(self, log_compute: float | Array) -> Array:
        """Nats per token at ln FLOPs. Raises ValueError where the law was refused."""
        l0, log_alpha, gamma = self._coefficients()
        return np.asarray(l0 + np.exp(log_alpha - gamma * np.asarray(log_compute)), dtype=float)

    def log_compute(self, loss: float | Array) -> Array:
        """ln FLOPs at a loss; NaN at or below L0. Raises ValueError where it was refused."""
        l0, log_alpha, gamma = self._coefficients()
        above = np.maximum(np.asarray(loss, dtype=float) - l0, 0.0)
        with np.errstate(divide="ignore"):
            result = (log_alpha - np.log(above)) / gamma
        return np.asarray(np.where(above > 0, result, np.nan), dtype=float)

    def _coefficients(self) -> tuple[float, float, float]:
        if self.irreducible_loss is None or self.log_alpha is None or self.gamma is None:
            raise ValueError("the loss-compute law was refused")
        return self.irreducible_loss, self.log_alpha, self.gamma


@dataclass(frozen=True)
class Optimum:
    """The batch size and learning rate that reach a loss with the fewest tokens (or FLOPs).

    The numbers are None where refused. `covariance` is that of (ln LR, ln B), for ellipses.
    """

    loss: float
    params: float | None
    """None on the frontier where no size reaches the loss."""
    status: Status
    learning_rate: float | None = None
    batch_size: float | None = None
    """Sequences, not rounded."""
    tokens: float | None = None
    flops: float | None = None
    standard_errors: dict[str, float] = field(default_factory=dict)
    """Of ln learning_rate, ln batch_size and ln tokens, under those three names."""
    covariance: Array | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Contour:
    """The iso-loss surface ln D(B, LR) of one size at one loss, with its fitted quadratic.

    ln D = c0 + c1 x + c2 y + c3 x^2 + c4 x y + c5 y^2,
    x = ln LR - centre[0], y = ln B - centre[1].
    """

    loss: float
    params: float
    run_names: tuple[str, ...]
    learning_rates: Array
    batch_sizes: Array
    log_tokens: Array
    """Where the run reached the loss; where it did not, the bound it gives (see `bounds`)."""
    bounds: tuple[bool, ...]
    """True: the run did not reach the loss, ln D is larger than `log_tokens`."""
    weights: Array
    """Weight in the quadratic; 0 is unused."""
    centre: Array | None = None
    coefficients: Array | None = None
    residual_rms: float | None = None
    """Of ln D over the points used."""


@dataclass(frozen=True)
class SurfaceLaw:
    """The second estimate: one surface of loss over (N, D, B, LR) fitted to all runs at once.

    Its optimum is ln LR = lr[0] + lr[1] n + lr[2] d, ln B = b[0] + b[1] n + b[2] d with
    n = ln(N / centre N), d = ln(D / centre D).
    """

    status: Status
    log_learning_rate: Array | None = None
    """(3,)"""
    log_batch_size: Array | None = None
    """(3,)"""
    log_params_centre: float = 0.0
    log_tokens_centre: float = 0.0
    curvature: Array | None = None
    """(2, 2) Hessian of the loss in (ln LR, ln B), in units of the token slope dL/dlnD."""
    residual_rms: float | None = None
    """Of the loss, in nats per token."""
    frontier_log_ratio: float | None = None
    """ln(D / N) of the compute-optimal size at the centre of the data."""
    flops_per_token_per_param: float = 6.0
    cells: int = 0
    points: int = 0
    scatter: Array | None = None
    """(2,) standard deviations of ln LR and ln B of single (N, D) cells about the law, noise apart."""
    same_at_all_sizes: tuple[Quantity, ...] = ()
    """What does not depend on the size at equal tokens, as far as the largest size tells."""
    refusal: Refusal | None = None

    def optimum(self, log_params: float | Array, log_tokens: float | Array) -> tuple[Array, Array]:
        """(ln LR, ln B) at ln N, ln D. Raises ValueError where the surface was refused."""
        if self.log_learning_rate is None or self.log_batch_size is None:
            raise ValueError("the surface was refused")
        n = np.asarray(log_params) - self.log_params_centre
        d = np.asarray(log_tokens) - self.log_tokens_centre
        a, b = self.log_learning_rate, self.log_batch_size
        return a[0] + a[1] * n + a[2] * d, b[0] + b[1] * n + b[2] * d


@dataclass(frozen=True)
class HeldOutScore:
    """How one route did on the part of the user's own data that it was not shown."""

    route: Route
    regret_mean: float
    """Nats per token above the held-out cells' own minima."""
    regret_max: float
    log_learning_rate_error: float
    """Root mean square of ln(predicted / found)."""
    log_batch_size_error: float
    unexplained_learning_rate_error: float
    """The part of it that the noise of prediction and judge does not explain: the law's own."""
    unexplained_batch_size_error: float


@dataclass(frozen=True)
class Selection:
    """Which route answers by default and the evidence for it."""

    default_route: Route
    held_out: str
    """In words: what was held out, or why nothing could be."""
    scores: tuple[HeldOutScore, ...] = ()
    cells: int = 0
    log_distance: float = 1.0
    """Mean ln C of the held-out cells over the largest C shown: how far the test extrapolated."""

    def score_of(self, route: Route) -> HeldOutScore | None:
        """The evidence about one route, where there is some."""
        return next((score for score in self.scores if score.route == route), None)


@dataclass(frozen=True)
class Exclusion:
    """A run, or a part of it, that did not take part, and why."""

    run: str
    reason: str


@dataclass(frozen=True)
class DataRange:
    """What the data cover; extrapolation is measured from here."""

    runs: int = 0
    evaluations: int = 0
    sizes: tuple[float, ...] = ()
    batch_sizes: tuple[float, ...] = ()
    learning_rates: tuple[float, ...] = ()
    smallest_flops: float | None = None
    """On the fitted frontier; None without one."""
    largest_flops: float | None = None
    lowest_loss: float | None = None
    """Lowest loss of an optimum on the frontier."""
    highest_loss: float | None = None
    """Highest loss evaluated."""
    largest_tokens: float | None = None


@dataclass(frozen=True)
class Draws:
    """Bootstrap draws of all coefficients, thinned to what predictions need.

    One row per draw; a column group is None where its law was refused.
    """

    learning_rate: Array | None = None
    """(n, 2) intercept, slope."""
    batch_size: Array | None = None
    """(n, 2) intercept, slope."""
    loss_compute: Array | None = None
    """(n, 3) L0, ln alpha, gamma."""
    surface: Array | None = None
    """(n, 6) log_learning_rate then log_batch_size coefficients of the surface."""


@dataclass(frozen=True)
class Laws:
    """The whole result of a fit."""

    status: Status
    learning_rate: HyperparameterLaw
    batch_size: HyperparameterLaw
    loss_compute: LossComputeLaw
    surface: SurfaceLaw
    selection: Selection
    optima: tuple[Optimum, ...]
    """Per level and size."""
    frontier: tuple[Optimum, ...]
    """Across sizes, by least compute, per level: what the laws are fitted to."""
    contours: tuple[Contour, ...]
    excluded: tuple[Exclusion, ...]
    warnings: tuple[str, ...]
    data: DataRange
    draws: Draws
    sequence_length: int | None
    options: FitOptions
    tokenizer: str | None = None
    loss_kind: str | None = None

    @property
    def default_route(self) -> Route:
        """Which of the two estimates answers a prediction."""
        return self.selection.default_route

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Of the three laws, in order, without repetitions."""
        parts = (self.learning_rate, self.batch_size, self.loss_compute)
        found = [part.refusal for part in parts if part.refusal is not None]
        return tuple(r for i, r in enumerate(found) if r not in found[:i])
