"""What composing laws of runs from scratch with a checkpoint's past adds to the error of an answer.

That a continued run wants what a run from scratch of C_pre + C_cpt wants is an assumption, which no sweep
shows. `make bench-transfer` measured how far continued runs deviate from it: that is in every interval of a
continued run until validation runs of the user's own replace it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.prediction import Point, PredictionQuery
from isoloss.laws.model import Interval
from isoloss.laws.quantiles import student_quantiles

FADE = 0.5
"""Exponent of the variant "faded", see `faded`."""


@dataclass(frozen=True)
class CompositionError:
    """Of taking a continued run for one from scratch of C_pre + C_cpt."""

    log_rate: float
    """Standard deviation of ln LR."""
    log_batch: float
    freedom: float | None
    """Degrees of freedom behind both; None where they are given."""
    source: str
    """Where it is from, to follow "the error"."""

    def reach(self, level: float) -> float:
        """Half the width of the central interval of that level, in standard deviations."""
        at = 0.5 + level / 2
        if self.freedom is None:
            return NormalDist().inv_cdf(at)
        return float(student_quantiles(self.freedom, np.array([at]))[0])

    def sentence(self) -> str | None:
        """What the intervals carry, in words; None where they carry nothing."""
        if self.log_rate == self.log_batch == 0.0:
            return None
        return (
            f"The intervals include the error{self.source} of taking a continued run for one from scratch of C_pre + C_cpt: "
            f"a factor of {np.exp(self.log_rate):.2f} in the learning rate and {np.exp(self.log_batch):.2f} in the "
            "batch size (one standard deviation)."
        )


NONE = CompositionError(0.0, 0.0, None, "")
MEASURED = CompositionError(
    0.35, 0.57, 12.0, ", measured on continued runs of 12 tiny checkpoints (make bench-transfer),"
)
"""A checkpoint is a degree of freedom. Text, budget and size of real runs differ from those: replace it with the error
that validation runs near the answer show."""


def composition_error(query: PredictionQuery) -> CompositionError:
    """As given, or as measured; none where the total compute was given and nothing is composed."""
    if query.total_flops is not None:
        return NONE
    if query.composition_error is None:
        return MEASURED
    return CompositionError(*query.composition_error, None, " given")


def with_composition_error(point: Point, error: CompositionError, level: float) -> Point:
    """The same answer with each interval widened by an independent error of its logarithm."""
    reach = error.reach(level)
    return replace(
        point,
        learning_rate=_widened(point.learning_rate, reach * error.log_rate),
        batch_size=_widened(point.batch_size, reach * error.log_batch),
    )


def _widened(found: Interval, reach: float) -> Interval:
    below = float(np.hypot(np.log(found.value / found.low), reach)) if found.low > 0 else np.inf
    above = float(np.hypot(np.log(found.high / found.value), reach))
    return Interval(
        found.value, found.value * float(np.exp(-below)), found.value * float(np.exp(above))
    )


def faded(point: Point, log_share: float) -> Point:
    """The same answer with the learning rate times (C_cpt / C_total)^FADE, `log_share` being ln of that ratio.

    The more of the compute lies in the checkpoint's past, the lower the best learning rate. Over the benchmark's
    checkpoints, each left out in turn, ln LR errs by 0.19 instead of 0.39; the exponent found without
    one text, size or budget is 0.36 to 0.55.
    """
    factor = float(np.exp(FADE * log_share))
    rate = point.learning_rate
    return replace(
        point,
        learning_rate=Interval(rate.value * factor, rate.low * factor, rate.high * factor),
    )
