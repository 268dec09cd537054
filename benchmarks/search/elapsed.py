"""How long the Jobs of a strategy take with so many at a time, and how many of them are at work on average.

A round is decided when everything of the round before has come as far as it was to: its slowest Job holds up
the next. A Job takes as long as its FLOPs; starting it, and fitting laws between rounds, takes no time here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from isoloss_operator.planning.elapsed import elapsed
from isoloss_operator.planning.search_cost import MEASURED, PARALLELISM, MeasuredShare

GRIDS: dict[str, MeasuredShare] = {f"{each.lines}x{each.lines}": each for each in MEASURED}
"""By the size of the grids, as worlds are named."""
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

    Jobs at work are mean FLOPs over mean elapsed time, so that their quotient is the mean elapsed time again. The
    last line is the time that `isoloss plan` expects over the time taken: median and the middle 80 %.
    """
    yield f"{'Jobs at a time':38s}" + "".join(f"{jobs:18d}" for jobs in PARALLELISM)
    for grids in (*GRIDS, ""):
        pairs = [(a, b) for a, b in zip(base, found, strict=True) if grids in b.world]
        if pairs:
            yield from _rows(grids or "all", [a for a, _ in pairs], [b for _, b in pairs])
    expected = [_expected(each) / np.array(each.elapsed) for each in found]
    yield _row(
        "all: expected over taken",
        [
            f"{middle:.2f} ({low:.2f}-{high:.2f})"
            for low, middle, high in np.percentile(expected, (10, 50, 90), axis=0).T
        ],
    )


def _rows(name: str, base: Sequence[Timed], found: Sequence[Timed]) -> Iterator[str]:
    took = np.array([each.elapsed for each in found])
    at_work = np.mean([each.share for each in found]) / took.mean(axis=0)
    yield _row(f"{name}: at work", [f"{each:.1f}" for each in at_work])
    ratios = took / np.array([each.elapsed for each in base])
    yield _row(
        f"{name}: elapsed over the whole grids'",
        [
            f"{mean:.2f}/{worst:.2f}"
            for mean, worst in zip(ratios.mean(axis=0), ratios.max(axis=0), strict=True)
        ],
    )


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:38s}" + "".join(f"{cell:>18s}" for cell in cells)


def _expected(search: Timed) -> np.ndarray:
    """By PARALLELISM, over the whole grids' time with one Job at a time."""
    measured = next(GRIDS[name] for name in GRIDS if name in search.world)
    return np.array([measured.mean / measured.jobs_at_work(jobs) for jobs in PARALLELISM])
