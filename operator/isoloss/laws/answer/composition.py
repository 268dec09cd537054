"""What composing laws of runs from scratch with a checkpoint's past does to an answer, and to its error.

That a continued run wants what a run from scratch of C_pre + C_cpt wants is an assumption, which no sweep
shows. `make bench-transfer` measured how far continued runs deviate from it, by the share s = C_cpt / (C_pre + C_cpt) of
compute that is still to come:

    ln LR = ln LR_scratch + FADE ln s,    with a standard deviation of hypot(RATE_ERROR, FADE_ERROR ln s)
    ln B  = ln B_scratch,                 with a standard deviation of BATCH_ERROR

The error is in every interval of a continued run until validation runs of the user's own replace it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.prediction import Composition, Point, PredictionQuery
from isoloss.laws.model import Interval
from isoloss.laws.quantiles import student_quantiles

FADE, FADE_ERROR = 0.5, 0.15
"""Exponent of the share, and its standard deviation: 0.49 over all cases, 0.15 to 0.61 without one text, size or budget."""
RATE_ERROR, BATCH_ERROR = 0.35, 0.57
"""Standard deviations of ln LR and ln B whatever the share: 80 % intervals hold 78 and 89 % of the measured optima."""
CHECKPOINTS = 27
"""Behind them. Each is a degree of freedom: text, budget and size of real runs differ from those."""
LOWEST_SHARE = 0.18
"""Measured; below it the exponent is an extrapolation."""
NOTABLE = 0.95
"""A factor of the learning rate below this is told."""


@dataclass(frozen=True)
class CompositionError:
    """Error of taking a continued run for one from scratch of C_pre + C_cpt."""

    log_rate: float
    """Standard deviation of ln LR."""
    log_batch: float
    freedom: float | None
    """Degrees of freedom behind both; None if they are given."""
    source: str
    """Where it is from, to follow "the error"."""

    def reach(self, level: float) -> float:
        """Half the width of the central interval of that level, in standard deviations."""
        at = 0.5 + level / 2
        if self.freedom is None:
            return NormalDist().inv_cdf(at)
        return float(student_quantiles(self.freedom, np.array([at]))[0])

    def sentence(self) -> str | None:
        """What the intervals carry, in words; None if they carry nothing."""
        if self.log_rate == self.log_batch == 0.0:
            return None
        return (
            f"The intervals include the error{self.source} of taking a continued run for one from scratch of C_pre + C_cpt: "
            f"a factor of {np.exp(self.log_rate):.2f} in the learning rate and {np.exp(self.log_batch):.2f} in the "
            "batch size (one standard deviation)."
        )


NONE = CompositionError(0.0, 0.0, None, "")
_SOURCE = f", measured on continued runs of {CHECKPOINTS} tiny checkpoints (make bench-transfer),"


def composition_error(query: PredictionQuery, log_share: float) -> CompositionError:
    """As given, or as measured at ln(C_cpt / C_total); none if the total compute was given and nothing is composed.

    Replace it with what validation runs near the answer show.
    """
    if query.total_flops is not None:
        return NONE
    if query.composition_error is not None:
        return CompositionError(*query.composition_error, None, " given")
    missed = FADE_ERROR if query.composition == "Measured" else float(np.hypot(FADE, FADE_ERROR))
    log_rate = float(np.hypot(RATE_ERROR, missed * log_share))
    return CompositionError(log_rate, BATCH_ERROR, float(CHECKPOINTS), _SOURCE)


def other_composition(composition: Composition) -> Composition:
    """The other composition, whose answer is shown as a variant."""
    return "Paper" if composition == "Measured" else "Measured"


def composed(point: Point, query: PredictionQuery, log_share: float, level: float) -> Point:
    """The laws' answer at C_total as that of a continued run: moved as `query.composition` says, and less certain.

    `log_share` is ln(C_cpt / C_total); 0 if the total compute was given and nothing is composed.
    """
    factor = float(np.exp(FADE * log_share)) if query.composition == "Measured" else 1.0
    error = composition_error(query, log_share)
    rate, reach = point.learning_rate, error.reach(level)
    moved = Interval(rate.value * factor, rate.low * factor, rate.high * factor)
    return replace(
        point,
        learning_rate=_widened(moved, reach * error.log_rate),
        batch_size=_widened(point.batch_size, reach * error.log_batch),
    )


def _widened(found: Interval, reach: float) -> Interval:
    """The interval with an independent error of its logarithm."""
    below = float(np.hypot(np.log(found.value / found.low), reach)) if found.low > 0 else np.inf
    above = float(np.hypot(np.log(found.high / found.value), reach))
    return Interval(
        found.value, found.value * float(np.exp(-below)), found.value * float(np.exp(above))
    )


def composition_sentences(query: PredictionQuery, log_share: float) -> tuple[str, ...]:
    """What the answer owes to being that of a continued run, in words."""
    found = []
    factor, share = float(np.exp(FADE * log_share)), float(np.exp(log_share))
    if query.composition == "Measured" and factor < NOTABLE:
        beyond = (
            f" Shares below {LOWEST_SHARE:.0%} were not measured." if share < LOWEST_SHARE else ""
        )
        found.append(
            f"The laws' learning rate is taken times {factor:.2f}, the root of the share of compute that is still to come "
            f"({share:.2g}), as continued runs of small checkpoints wanted; the variant paper leaves it as it is.{beyond}"
        )
    sentence = composition_error(query, log_share).sentence()
    return (*found, sentence) if sentence else tuple(found)
