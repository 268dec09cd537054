"""How long the Jobs of a strategy take with so many at a time, and how many of them are at work on average.

A round is decided when everything of the round before has come as far as it was to: its slowest Job holds up
the next. A Job takes as long as its FLOPs; starting it, and fitting laws between rounds, takes no time here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from isoloss_operator.planning.elapsed import elapsed
from isoloss_operator.planning.search_cost import PARALLELISM

Rounds = Sequence[Sequence[float]]
"""FLOPs of each Job of each round."""


def elapsed_rounds(rounds: Rounds, jobs: int) -> float:
    """Time from the first Job's start to the last one's end, in FLOPs of one Job."""
    return sum(elapsed(flops, jobs) for flops in rounds)


class Timed(Protocol):
    """A strategy's result in a world."""

    @property
    def world(self) -> str:
        """Its name, with the size of its grids."""
        ...

    @property
    def share(self) -> float:
        """FLOPs asked for, over those of the whole grids."""
        ...

    @property
    def elapsed(self) -> tuple[float, ...]:
        """For each number of PARALLELISM, over the whole grids' with one Job at a time."""
        ...


def elapsed_table(base: Sequence[Timed], found: Sequence[Timed]) -> Iterator[str]:
    """By grid size: Jobs at work on average, and elapsed time over that of the whole grids (`base`), mean / worst.

    Jobs at work are mean FLOPs over mean elapsed time, so that their quotient is the mean elapsed time again.
    """
    yield f"{'Jobs at a time':38s} " + " ".join(f"{jobs:>11d}" for jobs in PARALLELISM)
    for grids in ("3x3", "4x4", "5x5", ""):
        pairs = [(a, b) for a, b in zip(base, found, strict=True) if grids in b.world]
        if not pairs:
            continue
        took = np.array([b.elapsed for _, b in pairs])
        at_work = np.mean([b.share for _, b in pairs]) / took.mean(axis=0)
        yield f"{grids or 'all'}: at work".ljust(39) + " ".join(
            f"{each:11.1f}" for each in at_work
        )
        ratios = took / np.array([a.elapsed for a, _ in pairs])
        yield f"{grids or 'all'}: elapsed over the whole grids'".ljust(39) + " ".join(
            f"{mean:5.2f}/{worst:5.2f}"
            for mean, worst in zip(ratios.mean(axis=0), ratios.max(axis=0), strict=True)
        )
