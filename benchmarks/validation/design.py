"""What is trained about the answer, and which answers are judged. Nothing here computes losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.transfer.design import Grid
from benchmarks.transfer.design import Place as Exponents
from isoloss.laws import Array, Interval, Prediction
from isoloss.significant_digits import to_significant_digits
from isoloss.validation import Place

LINES = (7, 6)
"""At most so many learning rates and batch sizes of a grid that grows."""
FIRST = (-1, 1)
"""Exponents of the grid's first and last line of either kind before it grows."""
HALF = 0.5
"""Step of the finer grid about the optimum, of a line of the grid …"""
CLOSE = 0.6
"""… and its reach to every side."""


@dataclass(frozen=True)
class Lattice:
    """Places at powers of `factor` times and below the laws' answer, which is one of them."""

    centre: Place
    factor: float

    def first_grid(self) -> Grid:
        """Before it grows."""
        lowest = 0
        while self.centre.batch_size * self.factor ** (lowest - 1) >= 1.0:
            lowest -= 1
        return Grid(FIRST, (max(FIRST[0], lowest), FIRST[1]), lowest_batch=lowest)

    def at(self, i: float, j: float) -> Place:
        """The place at exponents `i` of the learning rate and `j` of the batch size, rounded as probes are."""
        rate = self.centre.learning_rate * self.factor**i
        batch = max(round(self.centre.batch_size * self.factor**j), 1)
        return Place(to_significant_digits(rate, 4), batch)

    def finer(self, vertex: Array) -> list[Place]:
        """The places of half the steps about `vertex` (2,), ln LR and ln B; some may be in the grid."""
        origin = np.log([self.centre.learning_rate, self.centre.batch_size])
        middle = (vertex - origin) / np.log(self.factor)
        rates, batches = (
            [HALF * k for k in _between((m - CLOSE) / HALF, (m + CLOSE) / HALF)] for m in middle
        )
        return [self.at(i, j) for i in rates for j in batches]

    def cross(self, exponents: Exponents) -> tuple[Place, ...]:
        """A place and its four neighbours."""
        i, j = exponents.i, exponents.j
        around = ((i, j), (i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1))
        return tuple(self.at(*each) for each in around)

    def interior(self, grid: Grid) -> Iterator[Exponents]:
        """Points whose four neighbours are in the grid, apart from the centre."""
        (low, high), (small, large) = grid.rates, grid.batches
        for point in grid.places():
            if low < point.i < high and small < point.j < large and point != Exponents(0, 0):
                yield point


@dataclass(frozen=True)
class Shift:
    """What an answer is multiplied by, to see whether probes bring it back."""

    name: str
    rate: float = 1.0
    batch: float = 1.0

    def of(self, answer: Prediction) -> Prediction:
        """The answer that laws would have given that err by so much, and are as sure of it."""
        rate, batch, raw = answer.learning_rate, answer.batch_size, answer.batch_size_raw
        moved = self.batch * raw
        return replace(
            answer,
            learning_rate=_times(rate, self.rate),
            batch_size=replace(_times(batch, self.batch), value=float(max(round(moved), 1))),
            batch_size_raw=moved,
        )


def _between(low: float, high: float) -> range:
    """The whole numbers from `low` to `high`."""
    return range(int(np.ceil(low)), int(np.floor(high)) + 1)


def _times(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


OWN = Shift("the laws' answer")
THRICE = (Shift("3 times its learning rate", 3.0), Shift("a third of it", 1.0 / 3.0))
