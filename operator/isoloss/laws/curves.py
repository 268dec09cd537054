"""The laws as objects: one set of coefficients, or one set per bootstrap draw, in the same formulas.

Nothing else writes these formulas out. A coefficient is a number or an array (draws,); arguments broadcast
against the coefficients.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypeVar

import numpy as np

from isoloss.laws.arrays import LARGEST_QUANTITY, Array, Coefficient, Finite, Flags, Indices
from isoloss.laws.model import LawForm

Number = Coefficient
Quantity = Literal["learning_rate", "batch_size"]


@dataclass(frozen=True)
class Drawn:
    """Coefficients that are the same law once, or once per bootstrap draw."""

    @property
    def count(self) -> int:
        """How many draws there are; 1 of plain numbers."""
        first = getattr(
            self, next(f.name for f in fields(self) if f.name not in ("quantity", "form"))
        )
        return first.count if isinstance(first, Drawn) else int(np.size(first))

    def take(self, rows: slice | Indices | Flags) -> Self:
        """Only these draws."""
        return self._mapped(lambda value, _: value[rows], self)

    def first(self) -> Self:
        """The first draw as plain numbers: the estimate, if it leads the draws."""
        return self._mapped(lambda value, _: float(value[0]), self)

    def after(self, estimate: Self) -> Self:
        """The estimate as draw 0, before these draws."""
        return self._mapped(lambda value, first: np.concatenate([[first], value]), estimate)

    def column(self) -> Self:
        """Draws as (draws, 1), to evaluate all of them at an array of arguments."""
        return self._mapped(lambda value, _: value[:, None], self)

    def _mapped(self, change: Any, other: Self) -> Self:
        changed = {}
        for field in fields(self):
            value, partner = getattr(self, field.name), getattr(other, field.name)
            if isinstance(value, Drawn):
                changed[field.name] = value._mapped(change, partner)
            elif isinstance(value, np.ndarray):
                changed[field.name] = change(value, partner)
        return replace(self, **changed)


@dataclass(frozen=True)
class LossCurve(Drawn):
    """L(x) = L0 + alpha x^-gamma: nats per token over FLOPs of the frontier, or over one size's tokens."""

    irreducible: Number
    """L0, nats per token."""
    log_alpha: Number
    """ln alpha; alpha alone can overflow when gamma is large."""
    gamma: Number

    def loss(self, log_x: Number) -> Array:
        """Nats per token at ln x."""
        falling = np.exp(self.log_alpha - self.gamma * np.asarray(log_x))
        return np.asarray(self.irreducible + falling, dtype=float)

    def log_x(self, loss: Number, nearest: float = 0.0) -> Array:
        """ln x at a loss; losses count as at least `nearest` above L0, where ln x is +inf."""
        above = np.maximum(np.asarray(loss, dtype=float) - self.irreducible, nearest)
        with np.errstate(divide="ignore"):
            return np.asarray((self.log_alpha - np.log(above)) / self.gamma, dtype=float)

    def steepness(self, log_x: Number) -> Array:
        """-dlnL/dlnx."""
        falling = np.exp(self.log_alpha - self.gamma * np.asarray(log_x))
        return np.asarray(self.gamma * falling / (self.irreducible + falling), dtype=float)


@dataclass(frozen=True)
class HyperparameterCurve(Drawn):
    """The optimal learning rate or batch size along the frontier of least compute.

    PowerLawOfLoss: ln x = intercept + slope ln L.
    LinearInLogCompute: ln C = intercept + slope y, with y = ln LR or y = B in sequences (the form of
    the paper's appendix).
    """

    quantity: Quantity
    form: LawForm
    intercept: Number
    slope: Number

    def log_value(self, loss: Number, log_compute: Number) -> Array:
        """ln LR or ln B at a loss (nats per token) and ln FLOPs; the form decides which is used."""
        if self.form == "PowerLawOfLoss":
            return np.asarray(self.intercept + self.slope * np.log(loss), dtype=float)
        y = (np.asarray(log_compute) - self.intercept) / self.slope
        if self.quantity == "batch_size":
            # A law that is linear in B can fall below zero.
            y = np.log(np.maximum(y, 1.0 / LARGEST_QUANTITY))
        return np.asarray(y, dtype=float)

    def value(self, loss: Number, log_compute: Number) -> Array:
        """LR, or B in sequences."""
        return np.asarray(np.exp(self.log_value(loss, log_compute)), dtype=float)


@dataclass(frozen=True)
class Trend(Drawn):
    """How the logarithm of a hyperparameter goes with n = ln N and d = ln D, counted from the trends' centre:

    ln x = constant + of_params n + of_tokens d + of_params_squared n^2 + of_tokens_squared d^2.
    """

    constant: Number
    of_params: Number
    of_tokens: Number
    of_params_squared: Number = 0.0
    of_tokens_squared: Number = 0.0

    def at(self, n: Number, d: Number) -> Array:
        """ln x."""
        of_params = self.of_params + self.of_params_squared * n
        of_tokens = self.of_tokens + self.of_tokens_squared * d
        return np.asarray(self.constant + of_params * n + of_tokens * d, dtype=float)

    def exponents(self, n: float, d: float) -> tuple[float, float]:
        """Of N and of D at a place."""
        of_params = self.of_params + 2.0 * self.of_params_squared * n
        of_tokens = self.of_tokens + 2.0 * self.of_tokens_squared * d
        return float(of_params), float(of_tokens)


@dataclass(frozen=True)
class RateAtBatch(Drawn):
    """The best ln LR at a batch size over ln N, ln D and ln B, counted from the centres."""

    constant: Number
    of_params: Number
    of_tokens: Number
    of_batch: Number
    of_batch_squared: Number
    of_batch_and_tokens: Number
    """Of their product."""
    log_params_centre: Finite
    log_tokens_centre: Finite
    log_batch_centre: Finite

    def at(self, log_params: Number, log_tokens: Number, log_batch: Number) -> Array:
        """ln LR."""
        of = [getattr(self, field.name) for field in fields(self)]
        terms = self.terms(log_params, log_tokens, log_batch)
        return np.asarray(sum(c * term for c, term in zip(of, terms, strict=False)), dtype=float)

    def terms(self, log_params: Number, log_tokens: Number, log_batch: Number) -> Array:
        """(6, ...): ln LR is the coefficients times these."""
        n = np.asarray(log_params) - self.log_params_centre
        d = np.asarray(log_tokens) - self.log_tokens_centre
        y = np.asarray(log_batch) - self.log_batch_centre
        return np.stack(np.broadcast_arrays(1.0, n, d, y, y**2, y * d))


@dataclass(frozen=True)
class OptimumTrends(Drawn):
    """The joint surface's optimum: ln LR and ln B over ln N and ln D."""

    learning_rate: Trend
    batch_size: Trend
    log_params_centre: Finite
    log_tokens_centre: Finite

    def at(self, log_params: Number, log_tokens: Number) -> tuple[Array, Array]:
        """(ln LR, ln B) at ln N, ln D."""
        n = np.asarray(log_params) - self.log_params_centre
        d = np.asarray(log_tokens) - self.log_tokens_centre
        return self.learning_rate.at(n, d), self.batch_size.at(n, d)

    def exponents(self, log_params: float, log_tokens: float) -> list[tuple[float, float]]:
        """(of N, of D) that LR and B follow at ln N, ln D."""
        n, d = log_params - self.log_params_centre, log_tokens - self.log_tokens_centre
        return [each.exponents(n, d) for each in (self.learning_rate, self.batch_size)]


Law = TypeVar("Law", bound=Drawn)


def with_draws(estimate: Law, draws: Law | None, count: int) -> Law:
    """The estimate and `count` of its draws; the estimate alone if there are none."""
    return estimate if draws is None else draws.take(slice(count)).after(estimate)


def count_draws(*groups: Drawn | None) -> int:
    """The draws that all of these laws have; 0 without any."""
    return min((group.count for group in groups if group is not None), default=0)
