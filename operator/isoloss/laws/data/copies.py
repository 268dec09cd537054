"""What makes one run of two names: counted as a second seed, it would say that seeds do not differ."""

from __future__ import annotations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.model import Run

SAME_TOKENS = 0.005
"""Token counts this close (relative) are the same nominal count, rounded to whole steps."""
FEWEST_SHARED = 2
"""Token counts with equal losses that make a copy of a part: at a single one, rounded losses can be equal by chance."""
EQUAL = 1e-8
"""Relative difference that writing a loss and reading it again may make."""


def shared_if_copy(run: Run, other: Run) -> int | None:
    """At how many token counts both have a loss, if all of these losses are equal; None: one does not repeat the other."""
    own, others = _shared_losses(run, other)
    is_whole = len(own) == len(run.losses) == len(other.losses)
    if not is_whole and np.isfinite(own).sum() < FEWEST_SHARED:
        return None
    return len(own) if _all_close(own, others, EQUAL) else None


def _shared_losses(run: Run, other: Run) -> tuple[Array, Array]:
    """The losses of each at the token counts of both."""
    if _all_close(run.tokens, other.tokens, SAME_TOKENS):
        return run.losses, other.losses
    _, own, others = np.intersect1d(run.tokens, other.tokens, return_indices=True)
    return run.losses[own], other.losses[others]


def _all_close(one: Array, other: Array, relative: float) -> bool:
    """Whether there are as many, all alike; what is no number is alike.

    np.allclose takes several times as long, and runs of one configuration are compared in pairs.
    """
    if one.shape != other.shape:
        return False
    with np.errstate(invalid="ignore"):  # an infinite loss less another
        is_alike = (one == other) | (np.abs(one - other) <= relative * np.abs(other))
    return bool(is_alike.all() or (is_alike | (np.isnan(one) & np.isnan(other))).all())
