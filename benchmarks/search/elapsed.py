"""How long searches take with so many Jobs at a time, and how many of them are at work on average: the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.search.scores import Result
from isoloss_operator.planning.search_cost import MEASURED, PARALLELISM, MeasuredShare

GRIDS: dict[str, MeasuredShare] = {f"{each.lines}x{each.lines}": each for each in MEASURED}
"""By the size of the grids, as worlds are named."""


def elapsed_table(base: Sequence[Result], found: Sequence[Result]) -> Iterator[str]:
    """By grid size: Jobs at work on average, and elapsed time over that of the whole grids (`base`), mean / worst.

    Jobs at work are mean FLOPs over mean elapsed time, so that their quotient is the mean elapsed time again. The
    last line is the time that `isoloss plan` expects over the time taken: median and the middle 80%.
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


def _rows(name: str, base: Sequence[Result], found: Sequence[Result]) -> Iterator[str]:
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


def _expected(search: Result) -> np.ndarray:
    """By PARALLELISM, over the whole grids' time with one Job at a time."""
    measured = next(GRIDS[name] for name in GRIDS if name in search.world)
    return np.array([measured.mean / measured.jobs_at_work(jobs) for jobs in PARALLELISM])
