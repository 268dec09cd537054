"""The cells of one size's grid, and those next to a cell, the grid's own or beyond its edge."""

import math
from collections.abc import Iterable, Sequence

from isoloss.numbers import to_significant_digits
from isoloss.search.model import Point, Seen, Size
from isoloss.usual import SAME_VALUE, USUAL_STEP

LEAST_STEP = 0.6
"""ln units between a cell and its neighbour: nearer cells differ by less than runs do from seed to seed."""


def grid_points(size: Size) -> tuple[Point, ...]:
    """All cells of the spec's grid."""
    return tuple(
        Point(size.name, b, lr)
        for b in sorted(size.batch_sizes)
        for lr in sorted(size.learning_rates)
    )


def nearest_cell(size: Size, log_rate: float, log_batch: float) -> Point:
    """The grid's cell nearest to a place."""
    rate = min(size.learning_rates, key=lambda v: abs(math.log(v) - log_rate))
    batch = min(size.batch_sizes, key=lambda v: abs(math.log(v) - log_batch))
    return Point(size.name, batch, rate)


def neighbours(size: Size, seen: Iterable[Seen], cell: Point) -> tuple[Point, ...]:
    """The cells on the four sides of a cell, larger batch first.

    On a side without a line of the grid, or an added one, the cell is one step beyond the edge; none is where a
    batch is larger than may be added.
    """
    batches, rates = _axes(size, seen)
    return tuple(
        [
            Point(size.name, b, cell.learning_rate)
            for b in _sides(batches, cell.batch_size, whole=True)
            if b <= _largest_batch(size)
        ]
        + [Point(size.name, cell.batch_size, lr) for lr in _sides(rates, cell.learning_rate)]
    )


def larger_batches(size: Size, seen: Iterable[Seen], cell: Point) -> frozenset[Point]:
    """Cells at the next larger batch size whose learning rate is the cell's or next to it."""
    seen = tuple(seen)
    batches, rates = _axes(size, seen)
    larger = [b for b in batches if math.log(b / cell.batch_size) > LEAST_STEP]
    if not larger:
        return frozenset()
    beside = {cell.learning_rate, *_sides(rates, cell.learning_rate)}
    return frozenset(
        Point(size.name, b, lr)
        for b in batches
        if cell.batch_size < b <= larger[0]
        for lr in beside
    )


def distance(a: Point, b: Point) -> float:
    """ln units between two cells."""
    return math.hypot(
        math.log(a.batch_size / b.batch_size), math.log(a.learning_rate / b.learning_rate)
    )


def _axes(size: Size, seen: Iterable[Seen]) -> tuple[list[float], list[float]]:
    """Batch sizes and learning rates of the grid and of points that were added to it."""
    own = [s.point for s in seen if s.point.size == size.name]
    return (
        sorted({*size.batch_sizes, *(p.batch_size for p in own)}),
        sorted({*size.learning_rates, *(p.learning_rate for p in own)}),
    )


def _largest_batch(size: Size) -> float:
    """Of all that may run: the grid's may in any case."""
    if size.largest_batch_size is None:
        return math.inf
    return max(size.largest_batch_size, *size.batch_sizes)


def _sides(values: Sequence[float], at: float, *, whole: bool = False) -> list[float]:
    """The next larger and the next smaller value; beyond the last one, a step further."""
    up = [v for v in values if math.log(v / at) > SAME_VALUE]
    down = [v for v in reversed(values) if math.log(at / v) > SAME_VALUE]
    step_up = values[-1] / values[-2] if len(values) > 1 else USUAL_STEP
    step_down = values[1] / values[0] if len(values) > 1 else USUAL_STEP
    sides = [
        _at_least_a_step(up, at) or _rounded(values[-1] * _wide(step_up), whole),
        _at_least_a_step(down, at) or _rounded(values[0] / _wide(step_down), whole),
    ]
    return [v for v in sides if abs(math.log(v / at)) > SAME_VALUE]


def _at_least_a_step(values: Sequence[float], at: float) -> float | None:
    """The nearest value a step away; if all are nearer, the farthest; None without any."""
    far = [v for v in values if abs(math.log(v / at)) > LEAST_STEP]
    return far[0] if far else (values[-1] if values else None)


def _wide(step: float) -> float:
    return step if math.log(step) > LEAST_STEP else USUAL_STEP


def _rounded(value: float, whole: bool) -> float:
    return float(max(round(value), 1)) if whole else to_significant_digits(value, 4)
