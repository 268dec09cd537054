"""The laws along a line, with the bands that the bootstrap gives them. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoloss.laws import Array, HyperparameterCurve, HyperparameterLaw, Laws, Prediction


def hyperparameter_band(
    laws: Laws, law: HyperparameterCurve, x: Array
) -> tuple[Array, tuple[Array, Array] | None]:
    """The law along x (loss or FLOPs, by its form), and its band from the bootstrap draws."""
    log_compute = np.log(x)
    curve = law.value(x, log_compute)
    draws = laws.draws.learning_rate if law.quantity == "learning_rate" else laws.draws.batch_size
    if draws is None or draws.count < 2:
        return curve, None
    sampled = draws.column().value(x, log_compute)
    return curve, _band(sampled, laws.options.interval)


def loss_band(laws: Laws, x: Array) -> tuple[Array, Array] | None:
    """The band of L(C) along x, FLOPs."""
    draws = laws.draws.loss_compute
    if draws is None or draws.count < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        sampled = draws.column().loss(np.log(x))
    return _band(np.where(np.isfinite(sampled), sampled, np.nan), laws.options.interval)


def _band(sampled: Array, level: float) -> tuple[Array, Array]:
    low, high = np.nanquantile(sampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def band_at(laws: Laws, law: HyperparameterLaw, answer: Prediction) -> tuple[float, float] | None:
    """(low, high) of a law's band where an answer is drawn; None if there is neither law nor band."""
    place = answer.target_loss if law.form == "PowerLawOfLoss" else answer.total_flops
    if law.curve is None or place is None:
        return None
    _, band = hyperparameter_band(laws, law.curve, np.array([place.value]))
    return None if band is None else (float(band[0][0]), float(band[1][0]))


@dataclass(frozen=True)
class OutsideBand:
    """A predicted quantity that is drawn outside the band of its law, which is of runs from scratch."""

    value: float
    band: tuple[float, float]
    exact: float
    """Before rounding."""
    factor: float
    """By which it differs from that of a run from scratch; 1: nothing was composed."""

    @property
    def from_scratch(self) -> float:
        """What the same estimate gives for a run from scratch, not rounded."""
        return self.exact / self.factor

    def only_rounded(self) -> bool:
        """Whether it would be inside before rounding."""
        return _is_inside(self.band, self.exact)

    def only_composed(self) -> bool:
        """Whether it would be inside for a run from scratch, and not before rounding."""
        return not self.only_rounded() and _is_inside(self.band, self.from_scratch)


def outside_of(laws: Laws, law: HyperparameterLaw, answer: Prediction) -> OutsideBand | None:
    """How an answer, in the laws' sequences, is outside a law's band; None: it is not, or was given, or has no band."""
    is_rate = law.quantity == "learning_rate"
    band = None if answer.batch_size_given and not is_rate else band_at(laws, law, answer)
    value = getattr(answer, law.quantity).value
    if band is None or _is_inside(band, value):
        return None
    exact = value if is_rate else answer.batch_size_raw
    return OutsideBand(value, band, exact, _composed_by(law, answer))


def _is_inside(band: tuple[float, float], value: float) -> bool:
    return band[0] <= value <= band[1]


def _composed_by(law: HyperparameterLaw, answer: Prediction) -> float:
    """The factor of a continued run: the paper's composition leaves a run from scratch as it is."""
    own, paper = answer if answer.batch_size_given else answer.best, answer.variants.get("paper")
    if own is None or paper is None:
        return 1.0
    return float(getattr(own, law.quantity).value / getattr(paper, law.quantity).value)
