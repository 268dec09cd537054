"""What composing laws of runs from scratch with a checkpoint's past does to an answer, and to its error.

That a continued run wants what a run from scratch of C_pre + C_cpt wants is an assumption, which no sweep
shows. `make bench-transfer` measured how far continued runs deviate from it, by the share s = C_cpt / (C_pre + C_cpt) of
compute that is still to come:

    ln LR = ln LR_scratch + FADE ln s,    with a standard deviation of hypot(RATE_ERROR, FADE_ERROR ln s, young)
    ln B  = ln B_scratch + ln(2 - s),     with a standard deviation of BATCH_ERROR
    young = YOUNG_ERROR / (1 + r / YOUNG_TOKENS),   r the tokens per parameter of a run from scratch to the same point

2 - s is the mean of the compute behind a run, over its own tokens, in that of a run from scratch to the same point: if the best
batch size at a moment grows with what was learned until then, a run from scratch pays for its first part, in which it wants a
small one, and a continued run has that behind it.

If it is known at which learning rate the checkpoint was pre-trained, ln LR also moves by RATIO_EXPONENT times the logarithm of that rate over
the laws', from a quarter to 1.3 times theirs: measured on decayed checkpoints of two sizes, and averaged ones of one.

The error is in every interval of a continued run until validation runs of the user's own replace it.
"""

from dataclasses import dataclass, replace
from math import hypot
from statistics import NormalDist

import numpy as np

from isoloss import usual
from isoloss.laws.answer.question import Question
from isoloss.laws.arrays import LARGEST_LOG, Array
from isoloss.laws.model import Interval, Refusal, RefusalReason
from isoloss.laws.prediction import Composition, Point

OF_CONTINUED_RUNS = "The laws come from runs that continue checkpoints: compute is that of the continuation, and no composition applies."


@dataclass(frozen=True)
class CompositionError:
    """Error of taking a continued run for one from scratch of C_pre + C_cpt."""

    log_rate: float
    """Standard deviation of ln LR."""
    log_batch: float
    freedom: float | None
    """Degrees of freedom behind both; None if they are given."""
    source: str
    """Where it is from, in words."""
    remedy: str = ""
    """What makes it smaller, as a sentence."""

    def reach(self, level: float) -> float:
        """Half the width of the central interval of that level, in standard deviations."""
        at = 0.5 + level / 2
        if self.freedom is None:
            return NormalDist().inv_cdf(at)
        return float(student_quantiles(self.freedom, np.array([at]))[0])

    def sentence(self, *, of_batch: bool = True) -> str | None:
        """What the intervals carry, in words; None if they carry nothing. A given batch size has no interval."""
        if self.log_rate == 0.0 and (self.log_batch == 0.0 or not of_batch):
            return None
        intervals = "intervals also cover" if of_batch else "interval also covers"
        batch = f" and {np.exp(self.log_batch):.2f} in the batch size" if of_batch else ""
        return (
            f"The {intervals} the error of this rule, {self.source}: a factor of {np.exp(self.log_rate):.2f} in the learning "
            f"rate{batch} (one standard deviation).{self.remedy if of_batch else ''}"
        )


_SOURCE = f"as measured on continued runs of {usual.CHECKPOINTS} tiny checkpoints (docs/evidence/transfer.md)"
_REMEDY = " If the checkpoint was pre-trained at a lower learning rate than the laws', give pretraining_learning_rate."


def composition_error(question: Question) -> CompositionError:
    """As given, or as measured for such a run; none if the total compute was given and nothing is composed.

    Replace it with what validation runs near the answer show.
    """
    if question.cpt_flops is None or not question.composes:
        return CompositionError(0.0, 0.0, None, "")
    if question.composition_error is not None:
        return CompositionError(*question.composition_error, None, "as given")
    share = question.log_share
    # What the paper's composition leaves out is an error of it.
    wanted, given = _moves("Measured", share), _moves(question.composition, share)
    of_rate, of_batch = (w - g for w, g in zip(wanted, given, strict=True))
    of_ratio = (
        usual.RATIO_EXPONENT_ERROR * question.log_ratio
        if question.composition == "Measured"
        else 0.0
    )
    young = _young(question.tokens_per_param)
    log_rate = hypot(usual.RATE_ERROR, usual.FADE_ERROR * share, young, of_rate, of_ratio)
    remedy = (
        _REMEDY if question.composition == "Measured" and question.pretraining_rate is None else ""
    )
    log_batch = hypot(usual.BATCH_ERROR, of_batch)
    return CompositionError(log_rate, log_batch, float(usual.CHECKPOINTS), _SOURCE, remedy)


def _young(tokens_per_param: float | None) -> float:
    if tokens_per_param is None:
        return 0.0
    return usual.YOUNG_ERROR / (1.0 + tokens_per_param / usual.YOUNG_TOKENS)


def _moves(composition: Composition, log_share: float) -> tuple[float, float]:
    """ln of the factors by which learning rate and batch size differ from those of a run from scratch."""
    if composition == "Paper":
        return 0.0, 0.0
    return usual.FADE * log_share, float(np.log(2.0 - np.exp(log_share)))


def with_rate_ratio(question: Question, of_laws: Point) -> Question:
    """With the ratio of the checkpoint's learning rate to that of the laws at C_total, if it is known."""
    if question.pretraining_rate is None or not question.composes:
        return question
    ratio = question.pretraining_rate / of_laws.learning_rate.value
    return replace(question, log_ratio=float(np.log(ratio)))


def refuse_ratio(question: Question) -> Refusal | None:
    """Of a checkpoint that was pre-trained at a rate beyond those measured."""
    ratio = float(np.exp(question.log_ratio))
    if usual.LOWEST_RATIO <= ratio <= usual.HIGHEST_RATIO:
        return None
    return Refusal(
        RefusalReason.EXTRAPOLATION_TOO_FAR,
        f"The checkpoint was pre-trained at {ratio:.2g} times the learning rate of the laws; continued runs were measured from "
        f"{usual.LOWEST_RATIO:g} to {usual.HIGHEST_RATIO:g} times it. Leave that rate out, and run a validation.",
        {"ratio": ratio},
    )


def other_composition(composition: Composition) -> Composition:
    """The other composition, whose answer is shown as a variant."""
    return "Paper" if composition == "Measured" else "Measured"


def composed(point: Point, question: Question, level: float) -> Point:
    """The laws' answer at C_total as that of a continued run: moved as its composition says, and less certain.

    A batch size that was given stays.
    """
    error = composition_error(question)
    of_rate, of_batch = _moves(question.composition, question.log_share)
    of_rate += (
        usual.RATIO_EXPONENT * question.log_ratio if question.composition == "Measured" else 0.0
    )
    reach = error.reach(level)
    return replace(
        point,
        learning_rate=_moved(point.learning_rate, of_rate, reach * error.log_rate),
        batch_size=point.batch_size
        if question.batch_size is not None
        else _moved(point.batch_size, of_batch, reach * error.log_batch),
    )


def _moved(found: Interval, by: float, reach: float) -> Interval:
    """The interval, its logarithm moved `by` so much and with an independent error."""
    below = float(np.hypot(np.log(found.value / found.low), reach)) if found.low > 0 else np.inf
    above = float(np.hypot(np.log(found.high) - np.log(found.value), reach))
    value = found.value * float(np.exp(by))
    # An interval that is as wide as floats are stays finite, as it becomes JSON.
    above = min(above, LARGEST_LOG - max(0.0, float(np.log(value))))
    return Interval(value, value * float(np.exp(-below)), value * float(np.exp(above)))


def composition_covariance(question: Question) -> Array:
    """(2, 2) what composing adds to the covariance of (ln LR, ln B). A batch size that was given has no error."""
    error = composition_error(question)
    of_batch = 0.0 if question.batch_size is not None else error.log_batch
    return np.diag([error.log_rate**2, of_batch**2])


def composition_sentences(question: Question) -> tuple[str, ...]:
    """What the answer owes to being that of a continued run, in words."""
    if not question.composes:
        return (OF_CONTINUED_RUNS,)
    found = []
    factors = np.exp(_moves(question.composition, question.log_share))
    share = float(np.exp(question.log_share))
    if question.composition == "Measured" and 1.0 - share > usual.LARGEST_UNSEEN_SHARE:
        beyond = (
            f" Shares below {usual.LOWEST_SHARE:.0%} were not measured."
            if share < usual.LOWEST_SHARE
            else ""
        )
        of_batch = f", batch size x{factors[1]:.2f}" if question.batch_size is None else ""
        found.append(
            f"Adjusted for continued training: learning rate x{factors[0]:.2f}{of_batch} ({1.0 - share:.0%} of the compute is "
            f"already in the checkpoint). The variant paper leaves this out.{beyond}"
        )
    if question.log_ratio:
        found.append(
            f"The checkpoint was pre-trained at {np.exp(question.log_ratio):.2f} of the laws' learning rate: learning rate "
            f"x{np.exp(usual.RATIO_EXPONENT * question.log_ratio):.2f}, as tiny models wanted."
        )
    error = composition_error(question)
    sentence = error.sentence(of_batch=question.batch_size is None)
    return (*found, sentence) if sentence else tuple(found)


STEPS = 4000
"""Steps of the integration; errors are below 1e-6 of a quantile from one degree of freedom on."""


def student_quantiles(freedom: float, levels: Array) -> Array:
    """Student's t with `freedom` degrees of freedom (at least 1), of probabilities between 0 and 1.

    A prediction needs nothing else of scipy.special, whose import takes longer than the prediction.
    With t = sqrt(freedom) tan(a), the density of a is proportional to cos(a)^(freedom - 1): smooth and
    on a bounded range, where Simpson's rule sums it up.
    """
    angles = np.linspace(-0.5 * np.pi, 0.5 * np.pi, 2 * STEPS + 1)
    density = np.cos(angles).clip(0.0) ** (freedom - 1.0)
    pieces = (density[:-2:2] + 4.0 * density[1:-1:2] + density[2::2]) / 3.0
    reached = np.concatenate([[0.0], np.cumsum(pieces)])
    found = np.interp(levels, reached / reached[-1], angles[::2])
    return np.asarray(np.sqrt(freedom) * np.tan(found))
