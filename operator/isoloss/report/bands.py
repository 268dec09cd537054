"""The laws along a line, with the bands that the bootstrap gives them. Numbers only."""

import numpy as np

from isoloss import laws as engine


def hyperparameter_band(
    laws: engine.Laws, law: engine.HyperparameterCurve, x: engine.Array
) -> tuple[engine.Array, tuple[engine.Array, engine.Array] | None]:
    """The law along x (loss or FLOPs, by its form), and its band from the bootstrap draws."""
    log_compute = np.log(x)
    curve = law.value(x, log_compute)
    draws = laws.draws.learning_rate if law.quantity == "learning_rate" else laws.draws.batch_size
    if draws is None or draws.count < 2:
        return curve, None
    sampled = draws.column().value(x, log_compute)
    return curve, _band(sampled, laws.options.interval)


def loss_band(laws: engine.Laws, x: engine.Array) -> tuple[engine.Array, engine.Array] | None:
    """The band of L(C) along x, FLOPs."""
    draws = laws.draws.loss_compute
    if draws is None or draws.count < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        sampled = draws.column().loss(np.log(x))
    return _band(np.where(np.isfinite(sampled), sampled, np.nan), laws.options.interval)


def _band(sampled: engine.Array, level: float) -> tuple[engine.Array, engine.Array]:
    low, high = np.nanquantile(sampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def band_at(
    laws: engine.Laws, law: engine.HyperparameterLaw, answer: engine.Prediction
) -> tuple[float, float] | None:
    """(low, high) of a law's band where an answer is drawn; None if there is neither law nor band."""
    place = answer.target_loss if law.form == "PowerLawOfLoss" else answer.total_flops
    if law.curve is None or place is None:
        return None
    _, band = hyperparameter_band(laws, law.curve, np.array([place.value]))
    return None if band is None else (float(band[0][0]), float(band[1][0]))


def from_scratch(
    law: engine.HyperparameterLaw, answer: engine.Prediction
) -> tuple[engine.Interval, float]:
    """What the estimate behind an answer gives for a run from scratch, and the factor from there to the answer, not rounded."""
    own, paper = answer if answer.batch_size_given else answer.best, answer.variants.get("paper")
    if own is None or paper is None:  # nothing was composed, or as the paper does
        return getattr(answer, law.quantity), 1.0
    scratch: engine.Interval = getattr(paper, law.quantity)
    return scratch, float(getattr(own, law.quantity).value / scratch.value)
