"""Where a grid's optimum lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.measured_optimum import Optimum, loss_at, quadratic_optimum
from benchmarks.transfer.design import Grid, Place
from isoloss.laws import Run


def losses_at(runs: Mapping[Place, Run], tokens: float) -> dict[Place, float]:
    """Of all runs of a grid that reached `tokens`."""
    found = {place: loss_at(run, tokens) for place, run in runs.items()}
    return {place: loss for place, loss in found.items() if np.isfinite(loss)}


def best_place(losses: Mapping[Place, float]) -> Place:
    """The grid's own lowest."""
    return min(losses, key=lambda place: losses[place])


def widened(grid: Grid, places: Sequence[Place], lines: tuple[int, int]) -> Grid:
    """The grid with a line more on each side on which one of `places` lies."""
    for place in places:
        grid = grid.widened(place, lines)
    return grid


def optimum(losses: Mapping[Place, float]) -> Optimum:
    """Of the quadratic through the grid's best losses. Raises ValueError with fewer runs than FEWEST."""
    places = list(losses)
    points = np.log([[place.rate, place.batch] for place in places])
    return quadratic_optimum(points, np.array([losses[place] for place in places]))
