"""Grids of learning rate and batch size, what was measured on them, and where the optimum of a grid's losses lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.science.judging import QUADRATIC, Reading, read
from isoloss.laws import Array

LINES = (7, 6)
"""At most this many learning rates and batch sizes of a grid that grows."""
WINDOW = 0.1
"""Nats above the grid's best that a quadratic still describes …"""
FEWEST = 9
"""… unless fewer runs than this are within: it has six coefficients."""


@dataclass(frozen=True, order=True)
class Place:
    """One point of a grid: learning rate 2^i, batch size 2^j sequences."""

    i: int
    j: int

    @property
    def rate(self) -> float:
        """Learning rate."""
        return float(2.0**self.i)

    @property
    def batch(self) -> int:
        """Sequences."""
        return int(2**self.j)


@dataclass(frozen=True)
class Grid:
    """All places between two exponents of the learning rate and two of the batch size."""

    rates: tuple[int, int]
    batches: tuple[int, int]

    def places(self) -> Iterator[Place]:
        """Every point."""
        for j in range(self.batches[0], self.batches[1] + 1):
            for i in range(self.rates[0], self.rates[1] + 1):
                yield Place(i, j)

    def widened(self, best: Place, lowest_batch: int) -> Grid:
        """With a line more where `best` lies on the edge, up to LINES."""
        rates = _widened(self.rates, best.i, LINES[0])
        batches = _widened(self.batches, best.j, LINES[1], lowest_batch)
        return Grid(rates, batches)


def _widened(
    bounds: tuple[int, int], best: int, lines: int, lowest: int = -100
) -> tuple[int, int]:
    low, high = bounds
    if high - low + 1 >= lines:
        return bounds
    if best <= low > lowest:
        return low - 1, high
    return (low, high + 1) if best >= high else bounds


Runs = dict[Place, dict[int, float]]
"""Losses in nats per token of every run, by the tokens at which they were read; nan once a run has diverged."""


def losses_at(runs: Runs, tokens: int) -> dict[Place, float]:
    """Of all runs of a grid that were read there and have not diverged."""
    return {
        place: run[tokens]
        for place, run in runs.items()
        if tokens in run and np.isfinite(run[tokens])
    }


def best_place(losses: Mapping[Place, float]) -> Place:
    """The grid's own lowest."""
    return min(losses, key=lambda place: losses[place])


def optimum(losses: Mapping[Place, float]) -> Reading:
    """Of the quadratic through the grid's best losses. Raises ValueError with fewer runs than FEWEST."""
    if len(losses) < FEWEST:
        raise ValueError(f"{len(losses)} runs reached these tokens; a quadratic needs {FEWEST}")
    points = np.array([[*_logs(place), loss] for place, loss in losses.items()])
    excess = np.sort(points[:, 2]) - points[:, 2].min()
    return read(points, max(WINDOW, float(excess[FEWEST - 1])), QUADRATIC)


def has_optimum(losses: Mapping[Place, float]) -> bool:
    """Whether there are runs enough, and it is a minimum between the grid's outermost lines."""
    if len(losses) < FEWEST:
        return False
    found, places = optimum(losses), np.array([_logs(place) for place in losses])
    at = found.vertex
    return found.convex and bool(np.all((at >= places.min(axis=0)) & (at <= places.max(axis=0))))


def standard_errors(losses: Mapping[Place, float]) -> Array:
    """(2,) Of the optimum's ln LR and ln B, with each run left out in turn (the jackknife); inf with too few runs."""
    if len(losses) <= FEWEST:
        return np.full(2, np.inf)
    without = [{p: loss for p, loss in losses.items() if p != left} for left in losses]
    vertices = np.array([optimum(some).vertex for some in without])
    count = len(vertices)
    return np.asarray(np.sqrt((count - 1) * vertices.var(axis=0)), dtype=float)


def _logs(place: Place) -> tuple[float, float]:
    """(ln LR, ln B)."""
    return float(np.log(place.rate)), float(np.log(place.batch))
