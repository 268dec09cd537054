"""Batch sizes as multiples of a number of sequences, and what to say where that moves them."""

import numpy as np

from isoloss.laws.model import Interval

ROUNDED_TOO_FAR = 0.25
"""Change of ln B by rounding above which there is a warning, and the learning rate is the best one at the multiple."""


def rounded(batch_size: float, multiple: float) -> float:
    """The nearest multiple, at least one of it; `multiple` need not be whole."""
    return float(max(round(batch_size / multiple), 1) * multiple)


def is_far(batch_size: float, multiple: float) -> bool:
    """Whether rounding moves a batch size so far that another learning rate may be the best there."""
    return abs(float(np.log(rounded(batch_size, multiple) / batch_size))) > ROUNDED_TOO_FAR


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
