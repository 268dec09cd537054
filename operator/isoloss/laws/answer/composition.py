"""What composing laws of runs from scratch with a checkpoint's past adds to the error of an answer.

That a continued run wants what a run from scratch of C_pre + C_cpt wants is an assumption. How far
continued runs deviate from it is for measurements to say: `make bench-transfer` on small checkpoints,
validation runs on one's own.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.prediction import Point, PredictionQuery
from isoloss.laws.model import Interval


def composition_error(query: PredictionQuery) -> tuple[float, float]:
    """Of ln LR and ln B, as given; none where the total compute was given and nothing is composed."""
    return (0.0, 0.0) if query.total_flops is not None else query.composition_error


def with_composition_error(point: Point, errors: tuple[float, float], level: float) -> Point:
    """The same answer with each interval widened by an independent error of its logarithm."""
    rate, batch = errors
    return replace(
        point,
        learning_rate=_widened(point.learning_rate, rate, level),
        batch_size=_widened(point.batch_size, batch, level),
    )


def _widened(found: Interval, error: float, level: float) -> Interval:
    reach = NormalDist().inv_cdf(0.5 + level / 2) * error
    below = float(np.hypot(np.log(found.value / found.low), reach)) if found.low > 0 else np.inf
    above = float(np.hypot(np.log(found.high / found.value), reach))
    return Interval(
        found.value, found.value * float(np.exp(-below)), found.value * float(np.exp(above))
    )


def composition_sentence(errors: tuple[float, float]) -> str | None:
    """What the intervals carry, in words; None where they carry nothing."""
    if errors == (0.0, 0.0):
        return None
    rate, batch = np.exp(errors)
    return (
        "The intervals include the given error of taking a continued run for one from scratch of C_pre + C_cpt: "
        f"a factor of {rate:.2f} in the learning rate and {batch:.2f} in the batch size (one standard deviation)."
    )
