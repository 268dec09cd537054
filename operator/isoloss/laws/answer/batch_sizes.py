"""Other batch sizes than the best one: the learning rate at a given one, what others cost, multiples of a number of sequences, and
sequences of another length.

The laws are about tokens per batch: runs of one sequence length say nothing about its effect.
"""

from dataclasses import replace
from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.optimum import token_curvature
from isoloss.laws.answer.question import Question
from isoloss.laws.arrays import ROUNDING
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Interval, Refusal, RefusalReason
from isoloss.laws.prediction import BatchSizeRange, Point, Prediction, Refused
from isoloss.laws.refusals import law_figures
from isoloss.laws.results import StableRate
from isoloss.laws.surface.law import JUST_BEYOND
from isoloss.usual import AT_THE_ANSWER, USUAL_SCATTER, USUAL_STEP

FARTHEST = 4.0
"""Factor beyond the batch sizes tried up to which the learning rate is told at one."""


def refuse_batch(laws: Laws, question: Question) -> Refusal | None:
    """Why there is no learning rate at the question's batch size; None if there is one."""
    law, batch = laws.rate_at_batch, question.batch_size
    assert batch is not None
    refusal = law.refusal
    if refusal is None:
        elsewhere = _another_size(laws, question) or _too_far(laws, batch)
        if elsewhere is not None:
            return elsewhere
        refusal = _above_the_rates(laws, question, batch)
    if refusal is None:
        return None
    return Refusal(RefusalReason.LAW_REFUSED, refusal.message, law_figures(refusal))


def _above_the_rates(laws: Laws, question: Question, batch: float) -> Refusal | None:
    """Refuse if the law is far above the rates tried where runs are nearest.

    Small batch sizes may show one side of a valley alone, and tell nothing of the other one, where it is steep.
    """
    law, nearest, place = laws.rate_at_batch, nearest_rates(laws, question, batch), question.place
    if law.curve is None or place is None or nearest is None or nearest.diverged is not None:
        return None  # the answer says what diverged
    tokens = min(float(np.exp(place[1][0])), laws.data.largest_tokens or np.inf)
    at = np.log([nearest.params, tokens, nearest.batch_size])
    best = float(np.exp(law.curve.at(*at)))
    if best <= nearest.highest * USUAL_STEP**JUST_BEYOND:
        return None
    return Refusal(
        RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE,
        f"The best learning rate of {nearest.params:.3g} parameters at {nearest.batch_size:g} sequences, {best:.3g}, is far above the "
        f"largest one tried there, {nearest.highest:.3g}: train larger ones.",
        {"edge": nearest.highest, "direction": "larger", "quantity": "learning_rate"},
    )


def nearest_rates(laws: Laws, question: Question, batch: float) -> StableRate | None:
    """Of the nearest size, the nearest batch size; of the largest size if the question names none."""
    rates = laws.data.stable_rates
    if not rates:
        return None
    log_params = question.log_params
    if log_params is None:
        log_params = float(np.log(max(rate.params for rate in rates)))
    return min(
        rates,
        key=lambda rate: (
            abs(np.log(rate.params) - log_params),
            abs(np.log(rate.batch_size / batch)),
        ),
    )


def _another_size(laws: Laws, question: Question) -> Refusal | None:
    """Refuse another size than the one that was trained, if it is one."""
    sizes = laws.data.sizes
    if laws.rate_at_batch.shows_params or question.log_params is None:
        return None
    if abs(question.log_params - np.log(sizes[0])) < USUAL_SCATTER:
        return None
    return Refusal(
        RefusalReason.TOO_FEW_SIZES,
        f"Only one size, {sizes[0]:.3g} parameters, has a batch size with three learning rates, and the best one depends on the "
        "size: it is known at that size alone. Train three learning rates at one batch size of another size.",
        {"sizes": len(sizes), "params": sizes[0]},
    )


def _too_far(laws: Laws, batch: float) -> Refusal | None:
    """Refuse a batch size that is too far from those tried."""
    law = laws.rate_at_batch
    low, high = float(law.smallest_batch or batch), float(law.largest_batch or batch)
    # Where every size has a single batch size, nothing shows what others want.
    limit = FARTHEST if law.shows_batch else float(np.exp(AT_THE_ANSWER))
    factor = max(low / batch, batch / high)
    if factor <= limit * (1.0 + ROUNDING):
        return None
    known = (
        ""
        if law.shows_batch
        else " Every size has a single batch size: others may want another learning rate."
    )
    sequences = batch / (laws.sequence_length or np.inf)
    if max(1.0, low / limit) <= sequences <= high * limit:
        known += f" If it is in tokens, write {sequences:.0f} sequences."
    return Refusal(
        RefusalReason.EXTRAPOLATION_TOO_FAR,
        f"The batch size, {batch:.6g} sequences, is too far from those with enough learning rates, {low:.4g} to {high:.4g}: "
        f"it must be at least {low / limit:.6g} and at most {high * limit:.6g}.{known}",
        {"value": batch, "factor": factor, "limit": limit},
    )


def batch_cost(laws: Laws, question: Question, batch: float, best: Point) -> Interval | None:
    """Nats that a batch size costs over the best one, the learning rate being the best at each; None without a surface."""
    curvature = _batch_curvature(laws, question)
    if curvature is None:
        return None
    found = best.batch_size
    costs = [0.5 * curvature * float(np.log(batch / b)) ** 2 for b in (found.low, found.high)]
    inside = found.low <= batch <= found.high
    value = 0.5 * curvature * float(np.log(batch / found.value)) ** 2
    return Interval(value, 0.0 if inside else min(*costs, value), max(*costs, value))


def affordable(
    laws: Laws, question: Question, best: Point, largest: float | None
) -> tuple[BatchSizeRange | None, tuple[str, ...]]:
    """The batch sizes that cost no more than the question's tolerance, and what to say of them; neither without one."""
    if question.tolerance is None:
        return None, ()
    curvature = _batch_curvature(laws, question)
    if curvature is None:
        sentence = "What other batch sizes cost is not known: the joint surface was refused."
        return None, (sentence,)
    found = _affordable(laws, curvature, question.tolerance, best, largest)
    if found is None:
        return None, (_not_affordable(laws, curvature, question.tolerance, best),)
    return found, _range_sentences(found)


def _affordable(
    laws: Laws, curvature: float, tolerance: float, best: Point, largest: float | None
) -> BatchSizeRange | None:
    """Batch sizes whose expected cost, the best one's own uncertainty included, is within the tolerance.

    It ends where nothing is known of batch sizes, FARTHEST beyond those tried, at one sequence, and at the `largest` that the
    budget has enough steps for, None: any.
    """
    deviation = _deviation(best.batch_size, laws.options.interval)
    left = 2.0 * tolerance / curvature - deviation**2
    if left < 0.0:
        return None
    reach, middle = float(np.sqrt(left)), float(np.log(best.batch_size.value))
    low, high = float(np.exp(middle - reach)), float(np.exp(middle + reach))
    least, most = _known(laws, best.batch_size.value)
    fewest = min(1.0, best.batch_size.value)
    longest = max(largest or np.inf, best.batch_size.value)
    return BatchSizeRange(
        tolerance,
        max(low, least, fewest),
        float(min(high, most, longest)),
        is_open_below=least > max(low, fewest),
        is_open_above=most < min(high, longest),
    )


def _known(laws: Laws, best: float) -> tuple[float, float]:
    """The smallest and largest batch size that anything is known of, the best one among them."""
    tried, law = laws.data.batch_sizes or (best,), laws.rate_at_batch
    smallest, largest = law.smallest_batch or min(tried), law.largest_batch or max(tried)
    return min(smallest / FARTHEST, best), max(largest * FARTHEST, best)


def _range_sentences(found: BatchSizeRange) -> tuple[str, ...]:
    """Where a range ends because nothing is known beyond, in words."""
    ends = [
        *(["down to its smallest batch size"] if found.is_open_below else []),
        *(["up to its largest batch size"] if found.is_open_above else []),
    ]
    if not ends:
        return ()
    return (
        f"The range within {found.tolerance:.2g} nats reaches at least {' and at least '.join(ends)}: beyond {FARTHEST:g} times "
        "the batch sizes tried nothing is known.",
    )


def _not_affordable(laws: Laws, curvature: float, tolerance: float, best: Point) -> str:
    """Why no batch size is within the tolerance."""
    expected = 0.5 * curvature * _deviation(best.batch_size, laws.options.interval) ** 2
    return (
        f"No batch size is known to cost at most {tolerance:.2g} nats: the best one's own uncertainty is expected to cost "
        f"{expected:.2g} nats."
    )


def _batch_curvature(laws: Laws, question: Question) -> float | None:
    """Second derivative of the loss over ln B, nats, the learning rate following; None without a surface."""
    if laws.surface.curvature is None:
        return None
    valley = token_curvature(laws) * question.slope
    return float(valley[1, 1] - valley[0, 1] ** 2 / valley[0, 0])


def _deviation(found: Interval, level: float) -> float:
    """Standard deviation of the logarithm, from an interval."""
    return float(np.log(found.high / found.low)) / (2.0 * NormalDist().inv_cdf(0.5 + level / 2))


# --------------------------------------------------------------------------------------- multiples


def rounded(batch_size: float, multiple: float) -> float:
    """The nearest multiple, at least one of it; `multiple` need not be whole."""
    return float(max(round(batch_size / multiple), 1) * multiple)


def is_far(batch_size: float, multiple: float) -> bool:
    """Whether rounding moves a batch size so far that another learning rate may be the best there."""
    return abs(float(np.log(rounded(batch_size, multiple) / batch_size))) > AT_THE_ANSWER


def far_sentence(batch_size: float, multiple: float) -> str:
    """That the nearest multiple is far from the best batch size, both in sequences of one length."""
    return (
        f"The nearest multiple of {multiple:.10g} is {rounded(batch_size, multiple):.10g} sequences, far from the optimum of "
        f"{batch_size:.4g}."
    )


def rounding_sentences(best: Interval, multiple: float) -> tuple[str, ...]:
    """What to say of a best batch size that was rounded while the learning rate stayed that of the best pair."""
    value = rounded(best.value, multiple)
    if is_far(best.value, multiple):
        return (
            f"{far_sentence(best.value, multiple)} The learning rate is that of {best.value:.4g} sequences: at {value:.10g} "
            "another one may be the best.",
        )
    if best.low <= value <= best.high:
        return ()
    return (
        f"Rounded to a multiple of {multiple:.10g}, the batch size is outside the interval of the best one, {best.low:.4g} to "
        f"{best.high:.4g} sequences.",
    )


def at_far_multiple(question: Question, batch_size: float) -> tuple[Question, str] | None:
    """The question of the learning rate at the multiple that is wanted, if that is so far from the best batch size that another is
    best there, and what to say of it."""
    if question.log_params is None or question.multiple == 1:
        return None
    if not is_far(batch_size, question.multiple):
        return None
    multiple = question.multiple
    there = replace(question, batch_size=rounded(batch_size, multiple), tolerance=None)
    return there, far_sentence(batch_size, multiple)


# ------------------------------------------------------------------------ sequences of another length


def for_length(
    answer: Prediction, multiple: float, laws_length: int, target_length: int
) -> Prediction:
    """An answer in sequences of the laws' length in those of the target's, and that these differ.

    It was rounded to a multiple of as many tokens as `multiple` sequences of the target have.
    """
    if laws_length == target_length:
        return answer
    converted = in_sequences(answer, laws_length, target_length)
    warnings = (
        # A status keeps the first few.
        f"The target's sequence length, {target_length}, differs from the sweep's, {laws_length}: batch sizes are converted "
        "at equal tokens per step, except those in other warnings. What the length itself does is not known.",
        *_in_target_sequences(answer, multiple, laws_length / target_length),
    )
    return replace(converted, warnings=warnings)


def in_words(refused: Refused, length: int) -> Refused:
    """With the unit of the batch sizes that its sentences have."""
    refusals = tuple(
        replace(each, message=f"{each.message} Sequences are the sweep's, of {length} tokens.")
        if "sequences" in each.message
        else each
        for each in refused.refusals
    )
    return replace(refused, refusals=refusals)


def in_sequences(answer: Prediction, length: int, wanted: int) -> Prediction:
    """An answer in sequences of `length` tokens in those of `wanted` tokens; its sentences stay."""
    ratio = length / wanted
    batch = _scaled(answer.batch_size, ratio)
    return replace(
        answer,
        batch_size=batch,
        batch_size_raw=_whole(answer.batch_size_raw * ratio),
        batch_size_tokens=_scaled(batch, wanted),
        affordable=_scaled_range(answer.affordable, ratio),
        best=None if answer.best is None else _scaled_point(answer.best, ratio),
        variants={name: _scaled_point(point, ratio) for name, point in answer.variants.items()},
        sequence_length=wanted,
    )


def _in_target_sequences(answer: Prediction, multiple: float, ratio: float) -> tuple[str, ...]:
    """The warnings, those of rounding in the target's sequences."""
    if answer.best is None:
        return answer.warnings
    best = answer.best.batch_size
    there, own = _scaled(best, ratio), multiple / ratio
    rewritten = {far_sentence(best.value, own): far_sentence(there.value, multiple)}
    old, new = rounding_sentences(best, own), rounding_sentences(there, multiple)
    rewritten.update(zip(old, new, strict=False))
    return tuple(rewritten.get(warning, warning) for warning in answer.warnings)


def _whole(value: float) -> float:
    """Without what floating point did to a whole number."""
    nearest = float(round(value))
    return nearest if abs(value - nearest) <= ROUNDING * value else value


def _scaled_range(found: BatchSizeRange | None, factor: float) -> BatchSizeRange | None:
    if found is None:
        return None
    smallest = max(found.smallest * factor, min(1.0, found.largest * factor))
    return replace(found, smallest=smallest, largest=found.largest * factor)


def _scaled_point(point: Point, factor: float) -> Point:
    return replace(point, batch_size=_scaled(point.batch_size, factor))


def _scaled(interval: Interval, factor: float) -> Interval:
    ends = (interval.value, interval.low, interval.high)
    return Interval(*(_whole(end * factor) for end in ends))
