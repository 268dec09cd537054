"""Between sequences of the laws' length and those of a run with another one, at equal tokens per step.

The laws are about tokens per batch: runs of one sequence length say nothing about its effect.
"""

from dataclasses import replace

from isoloss.laws.answer.rounding import far_sentence, rounding_sentences
from isoloss.laws.model import Interval
from isoloss.laws.prediction import BatchSizeRange, Point, Prediction

ALMOST_WHOLE = 1e-9
"""Relative distance from a whole number that a conversion there and back leaves."""


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
    return nearest if abs(value - nearest) <= ALMOST_WHOLE * value else value


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
