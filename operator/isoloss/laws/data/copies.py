"""What makes one run of two names: counted as a second seed, it would say that seeds do not differ."""

from collections.abc import Sequence

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array
from isoloss.laws.model import Run
from isoloss.usual import SAME_VALUE

SAME_TOKENS = 0.005
"""Token counts this close (relative) are the same nominal count, rounded to whole steps."""
FEWEST_SHARED = 2
"""Token counts with equal losses that make a copy of a part: at a single one, losses can be equal by chance."""
DIGITS = 6
"""Significant digits to which losses and tokens are compared: float32 has seven, and C's and Python's %g write six."""


def nominal_values(values: Sequence[float]) -> dict[float, float]:
    """Each value to the least of those within SAME_VALUE of their neighbours."""
    nominal: dict[float, float] = {}
    previous = current = -np.inf
    for value in sorted(set(values)):
        if value > previous * (1.0 + SAME_VALUE) or previous < 0:
            current = value
        nominal[value] = current
        previous = value
    return nominal


def shared_if_copy(run: Run, other: Run) -> int | None:
    """At how many token counts both have a loss, if all of these losses agree to six digits; None: one does not repeat the other."""
    own, others = _shared_losses(run, other)
    is_whole = len(own) == len(run.losses) == len(other.losses)
    if not is_whole and np.isfinite(own).sum() < FEWEST_SHARED:
        return None
    return len(own) if _agree(own, others) else None


def _shared_losses(run: Run, other: Run) -> tuple[Array, Array]:
    """The losses of each at the token counts of both."""
    if _are_same_tokens(run.tokens, other.tokens):
        return run.losses, other.losses
    apart = 10.0**-DIGITS * run.tokens
    near = np.searchsorted(other.tokens, run.tokens - apart)
    near = np.minimum(near, len(other.tokens) - 1)
    shared = np.abs(other.tokens[near] - run.tokens) <= apart
    return run.losses[shared], other.losses[near[shared]]


def _are_same_tokens(one: Array, other: Array) -> bool:
    if one.shape != other.shape:
        return False
    return bool((np.abs(one - other) <= SAME_TOKENS * other).all())


def _agree(one: Array, other: Array) -> bool:
    """Whether there are as many losses, all equal once written in DIGITS digits; NaN agrees with NaN, infinity with infinity."""
    if one.shape != other.shape:
        return False
    with np.errstate(invalid="ignore", divide="ignore"):
        last_digit = 10.0 ** (np.floor(np.log10(np.abs(other))) - (DIGITS - 1))
        is_close = np.abs(one - other) <= 0.5 * last_digit * (1.0 + ROUNDING)
    is_equal = (one == other) | (is_close & np.isfinite(other))
    return bool((is_equal | (np.isnan(one) & np.isnan(other))).all())
