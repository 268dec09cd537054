"""Grids of learning rate and batch size, and what was measured on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LINES = (7, 6)
"""At most this many learning rates and batch sizes of a grid that grows."""


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
