"""What makes one run of two names: counted as a second seed, it would say that seeds do not differ."""

from __future__ import annotations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.model import Run
from isoloss.usual import SEED_NOISE

SAME_TOKENS = 0.005
"""Token counts this close (relative) are the same nominal count, rounded to whole steps."""
FEWEST_SHARED = 2
"""Token counts with equal losses that make a copy of a part: at a single one, rounded losses can be equal by chance."""
EQUAL = 1e-8
"""Relative difference that writing a loss and reading it again may make."""
FEWEST_ROUNDED = 8
"""Evaluations at least that make a copy of a rounded run."""
LARGEST_CHANCE = 1e-3
"""Probability at most that two seeds agree as closely."""
MOST_DECIMALS = 6
"""From here on a loss counts as not rounded."""


def shared_if_copy(run: Run, other: Run) -> int | None:
    """At how many token counts both have a loss, if all of these losses are equal; None: one does not repeat the other."""
    own, others = _shared_losses(run, other)
    is_whole = len(own) == len(run.losses) == len(other.losses)
    if not is_whole and np.isfinite(own).sum() < FEWEST_SHARED:
        return None
    return len(own) if _all_close(own, others, EQUAL) else None


def is_rounded_copy(run: Run, other: Run) -> bool:
    """Whether one repeats the other in fewer decimals: each loss that both have is the other's, rounded.

    Two seeds can look like that only if they are written in different decimals, and then if rounding happens to bridge
    what they differ by, at every evaluation. A loss rounded to a unit u lies anywhere within u/2 of the true one, so that
    seeds that differ by d agree at one evaluation with the probability 1 - d/u, and never if d is larger than u. Seeds
    differ by SEED_NOISE or more: three decimals are told from a seed by any few evaluations, two by 66 at least.
    """
    own, others = _shared_losses(run, other)
    seen = np.isfinite(own)
    if seen.sum() < FEWEST_ROUNDED or (seen != np.isfinite(others)).any():
        return False
    coarse, fine = sorted((_unit(own[seen]), _unit(others[seen])), reverse=True)
    by_chance = max(1.0 - SEED_NOISE / coarse, 0.0) ** int(seen.sum())
    if coarse == fine or by_chance > LARGEST_CHANCE:
        return False
    # Both may be rounded from a third.
    most = 0.5 * (coarse + fine) * (1.0 + 1e-6)
    return bool((np.abs(own[seen] - others[seen]) <= most).all())


def unit(run: Run) -> float:
    """The power of ten that a run's losses were rounded to, 1e-6 at the least."""
    return _unit(run.losses[np.isfinite(run.losses)])


def _unit(losses: Array) -> float:
    for decimals in range(MOST_DECIMALS):
        # float32 has seven digits.
        if _all_close(np.round(losses, decimals), losses, 1e-7):
            return float(10.0**-decimals)
    return float(10.0**-MOST_DECIMALS)


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
