"""Whether the runs show the valley's curvature at all.

Least squares give an answer even if a direction of curvature was never tried: two learning rates make no
parabola, and a cross (one row and one column of the grid) does not show how the best learning rate moves with
the batch size. What such fits return there is arbitrary.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.data.cells import Cell
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.model import Refusal, RefusalReason
from isoloss.laws.surface.terms import Shape
from isoloss.usual import USUAL_STEP

LEAST_SHARE = 0.01
"""Share of a direction of curvature's variance inside cells that slopes and levels must leave unexplained.

Crosses and grids of two values leave nothing, synthetic crosses with one point off their lines 0.002 to 0.11, with two
0.012 to 0.19, full grids 0.19 to 0.45.
"""
NAMED_SIZES = 3

DIRECTIONS = {
    Shape.XX: ("learning rate", "the curvature in learning rate"),
    Shape.XY: ("diagonal", "how the best learning rate moves with the batch size"),
    Shape.YY: ("batch size", "the curvature in batch size"),
}


class Place(NamedTuple):
    """A run that would tell."""

    params: float
    learning_rate: float
    batch_size: float

    def __str__(self) -> str:
        return f"learning rate {self.learning_rate:.3g} with batch size {self.batch_size:.4g} at {self.params:.3g} parameters"


def refuse_unidentified(
    curvature: Array,
    inside: Array,
    left: Array,
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
) -> Refusal | None:
    """Refuse a design that leaves a direction of curvature open, and name runs that would show it.

    All columns are weighted (points, 3): `curvature`, the same `inside` cells, without their means, and what slopes inside cells
    leave of that.
    """
    share, direction, opened = _least_shown(curvature, inside, left)
    if share >= LEAST_SHARE:
        return None
    missing, words = DIRECTIONS[direction]
    places = list(_mending(missing, trajectories, cells))
    named = "; ".join(str(place) for place in places)
    # Which runs show the others depends on these.
    add = "Add these runs" if opened == 1 else "Add at least these runs"
    return Refusal(
        RefusalReason.CURVATURE_NOT_IDENTIFIED,
        f"The grid cannot determine {words}. {add}: {named}.",
        {"missing": missing, "share": share, "params": places[0].params},
    )


def _least_shown(curvature: Array, inside: Array, left: Array) -> tuple[float, Shape, int]:
    """The share that the other terms leave of the direction of curvature that they explain most of, that direction, and how
    many are left so little of."""
    spread = np.sqrt((inside**2).sum(axis=0))
    whole = np.sqrt((curvature**2).sum(axis=0))
    flat = spread <= 1e-6 * whole
    scaled = left / np.where(flat, np.inf, spread)
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    least = flat if flat.any() else np.abs(vectors[:, 0])
    opened = int((values < LEAST_SHARE).sum())
    return max(float(values[0]), 0.0), Shape(int(np.argmax(least))), opened


def _mending(
    missing: str, trajectories: Sequence[Trajectory], cells: Sequence[Cell]
) -> Iterator[Place]:
    """Next to the best run of a few sizes, the smallest and the largest among them."""
    last = {cell.log_params: cell for cell in sorted(cells, key=lambda cell: cell.log_tokens)}
    sizes = sorted(last)
    picked = np.unique(np.linspace(0, len(sizes) - 1, NAMED_SIZES).round().astype(int))
    for size in (sizes[i] for i in picked):
        best = trajectories[last[size].runs[np.argmin(last[size].log_losses)]]
        tried = {(t.learning_rate, t.batch_size) for t in trajectories if t.params == best.params}
        rate, batch = best.learning_rate, best.batch_size
        if missing == "learning rate":
            rate = _beyond(rate, {r for r, _ in tried})
        elif missing == "batch size":
            batch = _beyond(batch, {b for _, b in tried})
        else:
            rate, batch = _off_the_lines(rate, batch, tried)
        yield Place(best.params, rate, batch)


def _beyond(value: float, tried: set[float]) -> float:
    """One step outside of the values tried, on the side that this one is nearer to."""
    lines = sorted(tried)
    if len(lines) == 1:
        return value * USUAL_STEP
    upper = lines.index(value) >= len(lines) / 2
    return lines[-1] ** 2 / lines[-2] if upper else lines[0] ** 2 / lines[1]


def _off_the_lines(
    rate: float, batch: float, tried: set[tuple[float, float]]
) -> tuple[float, float]:
    """The pair of values tried, but not with one another, that is nearest; of equals the one of larger batch."""
    pairs = {(r, b) for r, _ in tried for _, b in tried} - tried
    if not pairs:
        return rate * USUAL_STEP, batch * USUAL_STEP
    return min(
        pairs,
        key=lambda pair: (
            round(abs(np.log(pair[0] / rate)) + abs(np.log(pair[1] / batch)), 6),
            -pair[1],
            pair[0],
        ),
    )
