"""Runs whose learning rate was written down ten times too high or too low.

Such a run lies far from all others, so that it decides about the curvature, and a parabola through the others says
little about what its loss should be there. What tells is the grid: the run is alone on its learning rate, its place at a
tenth or ten times of it is empty, and its loss is the one that is missing there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from isoloss.laws.arrays import Array, Indices

SLIP = float(np.log(10.0))
SAME_LINE = 0.02
"""ln LR within which two learning rates are one line of a grid."""
FEWEST_ON_A_LINE = 2
CONSISTENT = 4.0
"""Standard deviations within which the loss must be the missing one."""
WRONG = 0.003
"""ln L that the loss must be off at its label, at least."""


class Neighbours(Protocol):
    """What the other runs of a cell say of a place."""

    def at(self, position: Array) -> tuple[float, float]:
        """(ln L, its standard deviation per unit of noise)."""
        ...


class Slip(NamedTuple):
    """What is wrong with a run."""

    meant: float
    """Its learning rate, probably."""
    expected: float
    """ln L expected at the learning rate that the run reports."""
    deviations: float
    """How far its loss is from the one missing at `meant`, in standard deviations."""


def alone(positions: Array) -> Indices:
    """Which runs of a cell, at (runs, 2) ln LR and ln B, have their line of one learning rate for themselves: `slip` finds no others."""
    rates = positions[:, 0]
    on_line = np.abs(rates[None, :] - rates[:, None]) < SAME_LINE
    return np.flatnonzero(on_line.sum(axis=1) == 1)


def slip(
    positions: Array,
    log_losses: Array,
    at: int,
    noise: float,
    fit: Callable[[Array, Array], Neighbours | None],
) -> Slip | None:
    """Whether run `at` of a cell belongs to an empty place at ten times, or a tenth, of its learning rate.

    `positions` (runs, 2) are ln LR and ln B; `noise` is of ln L.
    """
    others = np.arange(len(positions)) != at
    rates, batches = positions[others].T
    if np.any(np.abs(rates - positions[at, 0]) < SAME_LINE):
        return None
    for factor in (SLIP, -SLIP):
        line = np.abs(rates - (positions[at, 0] - factor)) < SAME_LINE
        taken = line & (np.abs(batches - positions[at, 1]) < SAME_LINE)
        if line.sum() < FEWEST_ON_A_LINE or taken.any():
            continue
        neighbours = fit(positions[others], log_losses[others])
        if neighbours is None:
            continue
        meant = np.array([np.median(rates[line]), positions[at, 1]])
        missing, scale = neighbours.at(meant)
        stated, _ = neighbours.at(positions[at])
        deviations = abs(float(log_losses[at]) - missing) / (noise * scale)
        if deviations < CONSISTENT and abs(float(log_losses[at]) - stated) > WRONG:
            return Slip(float(np.exp(meant[0])), stated, deviations)
    return None
