"""What composing laws of runs from scratch with a checkpoint's past adds to the error of an answer.

That a continued run wants what a run from scratch of C_pre + C_cpt wants is an assumption, which no sweep
shows. `make bench-transfer` measured how far continued runs deviate from it: that is in every interval of a
continued run until validation runs of the user's own replace it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from isoloss.laws.answer.prediction import Point, PredictionQuery
from isoloss.laws.model import Interval
from isoloss.laws.quantiles import student_quantiles

CERTAIN = 1000.0
"""Degrees of freedom of an error that is given: as many as make Student's distribution normal."""


@dataclass(frozen=True)
class CompositionError:
    """Of taking a continued run for one from scratch of C_pre + C_cpt."""

    log_rate: float
    """Standard deviation of ln LR."""
    log_batch: float
    freedom: float
    """Degrees of freedom behind both."""
    source: str
    """Where it is from, to follow "the error … of taking a continued run for one from scratch"."""

    def sentence(self) -> str | None:
        """What the intervals carry, in words; None where they carry nothing."""
        if self.log_rate == self.log_batch == 0.0:
            return None
        return (
            f"The intervals include the error{self.source} of taking a continued run for one from scratch of C_pre + C_cpt: "
            f"a factor of {np.exp(self.log_rate):.2f} in the learning rate and {np.exp(self.log_batch):.2f} in the "
            "batch size (one standard deviation)."
        )


NONE = CompositionError(0.0, 0.0, CERTAIN, "")
MEASURED = CompositionError(
    0.6, 0.2, 12.0, " measured on continued runs of 12 tiny checkpoints (docs/guides/transfer.md)"
)
"""By `make bench-transfer`; a checkpoint is a degree of freedom. Text, budget and size of real runs differ from
those: replace it with the error that validation runs near the answer show."""


def composition_error(query: PredictionQuery) -> CompositionError:
    """As given, or as measured; none where the total compute was given and nothing is composed."""
    if query.total_flops is not None:
        return NONE
    if query.composition_error is None:
        return MEASURED
    return CompositionError(*query.composition_error, CERTAIN, " given")


def with_composition_error(point: Point, error: CompositionError, level: float) -> Point:
    """The same answer with each interval widened by an independent error of its logarithm."""
    reach = float(student_quantiles(error.freedom, np.array([0.5 + level / 2]))[0])
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
