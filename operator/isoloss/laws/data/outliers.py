"""Runs whose losses cannot be theirs: mislabelled, or measured on other data.

A run that looks like one of the best of its cell although its neighbours say that it cannot be decides where
the optimum seems to be. It is judged by a quadratic through the other runs of its size at the same tokens. Losses that
are too high need no such care: they weigh little anyway.

But for a learning rate that was written down ten times too high or too low: such a run lies far from all others, so that it
decides about the curvature, and a parabola through the others says little about what its loss should be there. What tells is
the grid: the run is alone on its learning rate, its place at a tenth or ten times of it is empty, and its loss is the one that
is missing there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array, Indices
from isoloss.laws.data.cells import Cell, late_cells
from isoloss.laws.data.smoothing import DENSE
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.quadratic import (
    NEAR,
    TERMS,
    Quadratic,
    fit_quadratic,
    is_determined,
    quadratic_terms,
)
from isoloss.usual import SAME_VALUE, USUAL_RUN_NOISE, USUAL_SLOPE

WINDOW = NEAR[-1] * USUAL_SLOPE
"""Range of ln L above a cell's best: there the parabola's own error is as large as the noise."""
CANDIDATES = 3
"""Lowest losses of a cell that are tested."""
NAMED, SURE = 4.0, 6.0
"""How many times its standard deviation a loss is below its neighbours' to be named, or to be left out."""
NAMED_NATS, SURE_NATS = 0.003, 0.01
"""And by how much of ln L."""
LARGEST_SHARE = 0.05
"""Share of a size's runs that are left out at most: more of them are no mistakes but another valley."""
SLIP = float(np.log(10.0))
FEWEST_ON_A_LINE = 2


@dataclass(frozen=True)
class Outlier:
    """A run that reports less loss than it can have."""

    run: str
    params: float
    learning_rate: float
    batch_size: float
    loss: float
    """Nats."""
    expected: float
    """What its neighbours say."""
    deviations: float
    sure: bool
    meant_rate: float | None = None
    """The learning rate that it probably has, a tenth or ten times of its own."""

    @property
    def sentence(self) -> str:
        """What is wrong with it."""
        if self.meant_rate is not None:
            return (
                f"Run {self.run} ({self.params:.3g} parameters, learning rate {self.learning_rate:.3g}, batch size "
                f"{self.batch_size:.4g}) was probably trained at a learning rate of {self.meant_rate:.3g}: no other run has "
                f"the reported one, none has {self.meant_rate:.3g} with this batch size, and a loss of {self.loss:.4g} fits there."
            )
        return (
            f"Run {self.run} ({self.params:.3g} parameters, learning rate {self.learning_rate:.3g}, batch size "
            f"{self.batch_size:.4g}) reports a loss of {self.loss:.4g}, {self.expected - self.loss:.2g} nats less than "
            f"its neighbours allow, {self.deviations:.0f} times their scatter."
        )


@dataclass(frozen=True)
class _Suspect:
    """One low point of one cell, and what the others say of it."""

    trajectory: int
    excess: float
    """ln L expected less observed."""
    scale: float
    """Standard deviation of that per unit of noise."""


def find_outliers(
    trajectories: Sequence[Trajectory], cells: Sequence[Cell]
) -> tuple[Outlier, ...]:
    """Every run that is too low by far, the surest first: another may only seem so because of it."""
    cells = late_cells(cells)
    lowest = [_lowest(trajectories, cell) for cell in cells]
    noise = _noise(lowest)
    suspects: dict[tuple[int, str], list[tuple[Cell, _Suspect]]] = defaultdict(list)
    for cell, low in zip(cells, lowest, strict=True):
        for suspect in _suspects(cell, low):
            name = _run_at(trajectories[suspect.trajectory], cell.log_tokens)
            suspects[suspect.trajectory, name].append((cell, suspect))
    found = [
        outlier
        for (index, name), seen in suspects.items()
        if (outlier := _judged(trajectories, cells, index, name, seen, noise)) is not None
    ]
    found.sort(key=lambda outlier: -outlier.deviations)
    return (*_mislabelled(trajectories, cells, noise), *found)


def _mislabelled(
    trajectories: Sequence[Trajectory], cells: Sequence[Cell], noise: float
) -> Iterator[Outlier]:
    """Runs that belong to an empty place at ten times, or a tenth, of their learning rate in most of their cells."""
    seen: dict[tuple[int, str], list[tuple[Cell, int, _Slip]]] = defaultdict(list)
    for cell in cells:
        positions = _positions(trajectories, cell)
        for at in _alone(positions):
            index = cell.runs[at]
            found = _slip(positions, cell.log_losses, at, max(noise, USUAL_RUN_NOISE))
            if found is not None:
                name = _run_at(trajectories[index], cell.log_tokens)
                seen[int(index), name].append((cell, at, found))
    for (index, name), slips in seen.items():
        t = trajectories[index]
        own = [c for c in cells if index in c.runs and _run_at(t, c.log_tokens) == name]
        if 2 * len(slips) <= len(own):
            continue
        cell, at, last = max(slips, key=lambda found: found[0].log_tokens)
        yield Outlier(
            run=name,
            params=t.params,
            learning_rate=t.learning_rate,
            batch_size=t.batch_size,
            loss=float(np.exp(cell.log_losses[at])),
            expected=float(np.exp(last.expected)),
            deviations=last.deviations,
            # Twice as many others as a quadratic has terms.
            sure=len(cell.runs) > 2 * TERMS,
            meant_rate=last.meant,
        )


class _Slip(NamedTuple):
    """What is wrong with a run."""

    meant: float
    """Its learning rate, probably."""
    expected: float
    """ln L expected at the learning rate that the run reports."""
    deviations: float
    """How far its loss is from the one missing at `meant`, in standard deviations."""


def _alone(positions: Array) -> Indices:
    """Which runs of a cell, at (runs, 2) ln LR and ln B, have their line of one learning rate for themselves: `_slip` finds no others."""
    order = np.argsort(positions[:, 0])
    near = np.diff(positions[order, 0], prepend=-np.inf, append=np.inf) < SAME_VALUE
    return np.sort(order[~near[:-1] & ~near[1:]])


def _slip(positions: Array, log_losses: Array, at: int, noise: float) -> _Slip | None:
    """Whether run `at` of a cell belongs to an empty place at ten times, or a tenth, of its learning rate.

    `positions` (runs, 2) are ln LR and ln B; `noise` is of ln L.
    """
    others = np.arange(len(positions)) != at
    rates, batches = positions[others].T
    if np.any(np.abs(rates - positions[at, 0]) < SAME_VALUE):
        return None
    for factor in (SLIP, -SLIP):
        line = np.abs(rates - (positions[at, 0] - factor)) < SAME_VALUE
        taken = line & (np.abs(batches - positions[at, 1]) < SAME_VALUE)
        if line.sum() < FEWEST_ON_A_LINE or taken.any():
            continue
        neighbours = _neighbours(positions[others], log_losses[others])
        if neighbours is None:
            continue
        meant = np.array([np.median(rates[line]), positions[at, 1]])
        missing, scale = neighbours.at(meant)
        stated, _ = neighbours.at(positions[at])
        deviations = abs(float(log_losses[at]) - missing) / (noise * scale)
        if deviations < NAMED and abs(float(log_losses[at]) - stated) > NAMED_NATS:
            return _Slip(float(np.exp(meant[0])), stated, deviations)
    return None


def beyond_doubt(
    outliers: Sequence[Outlier], trajectories: Sequence[Trajectory], left_out: Sequence[Outlier]
) -> Outlier | None:
    """The surest, unless its size has lost as many as mistakes explain."""
    for outlier in outliers:
        lost = sum(other.params == outlier.params for other in left_out)
        runs = sum(len(t.names) for t in trajectories if t.params == outlier.params)
        if outlier.sure and lost + 1 <= max(1.0, LARGEST_SHARE * runs):
            return outlier
    return None


def _run_at(t: Trajectory, log_tokens: float) -> str:
    """The run evaluated there, if several runs make up the trajectory; else the trajectory's name."""
    if len(t.log_tokens) >= DENSE:
        return t.name
    return t.names[int(t.sources[np.argmin(np.abs(t.log_tokens - log_tokens))])]


def _positions(trajectories: Sequence[Trajectory], cell: Cell) -> Array:
    """(runs, 2): ln LR and ln B."""
    runs = [trajectories[i] for i in cell.runs]
    return np.log([[t.learning_rate, t.batch_size] for t in runs])


class _Low(NamedTuple):
    """One of a cell's lowest points."""

    at: int
    position: Array
    """(2,)"""
    others: _Neighbours
    """The quadratic through all others."""


def _lowest(trajectories: Sequence[Trajectory], cell: Cell) -> list[_Low]:
    """Those whose others are enough for a quadratic."""
    found = []
    positions = _positions(trajectories, cell)
    for at in np.argsort(cell.log_losses)[:CANDIDATES]:
        others = np.arange(len(cell.runs)) != at
        fit = _neighbours(positions[others], cell.log_losses[others])
        if fit is not None:
            found.append(_Low(int(at), positions[at], fit))
    return found


def _suspects(cell: Cell, lowest: Sequence[_Low]) -> list[_Suspect]:
    """The cell's lowest points against the others."""
    found = []
    for at, position, others in lowest:
        expected, scale = others.at(position)
        if cell.log_losses[at] < others.lowest + WINDOW:
            excess = expected - float(cell.log_losses[at])
            found.append(_Suspect(int(cell.runs[at]), excess, scale))
    return found


@dataclass(frozen=True)
class _Neighbours:
    fit: Quadratic
    inverse: Array
    """(6, 6) covariance of the coefficients per unit of noise."""
    lowest: float
    """Least loss of the points, ln L."""
    variance: float
    """Variance of a point of weight 1."""

    def at(self, position: Array) -> tuple[float, float]:
        """(ln L there, its standard deviation per unit of noise, the parabola's own error included)."""
        row = quadratic_terms(*(position - self.fit.centre))
        value = float(row @ self.fit.coefficients)
        misfit = 1.0 / _weights(np.array([value]), self.lowest)[0]
        return value, float(np.sqrt(misfit + row @ self.inverse @ row))


def _weights(log_losses: Array, lowest: float) -> Array:
    return np.asarray(1.0 / (1.0 + (np.maximum(log_losses - lowest, 0.0) / WINDOW) ** 2))


def _neighbours(positions: Array, log_losses: Array) -> _Neighbours | None:
    """The weighted quadratic through these points, or None if they are too few."""
    lowest = float(log_losses.min())
    weights = _weights(log_losses, lowest)
    x, y = positions.T
    if len(log_losses) <= TERMS or not is_determined(x, y):
        return None
    fit = fit_quadratic(x, y, log_losses, weights)
    variance = float((weights * fit.residuals**2).sum()) / max(len(log_losses) - TERMS, 1)
    per_noise = fit.solver / np.sqrt(weights)
    return _Neighbours(fit, per_noise @ per_noise.T, lowest, variance)


def _noise(lowest: Sequence[Sequence[_Low]]) -> float:
    """Standard deviation of ln L about the cells' quadratics, of the usual cell, each without its strangest point."""
    variances = [min(low.others.variance for low in found) for found in lowest if found]
    return float(np.sqrt(max(np.median(variances), 0.0))) if variances else USUAL_RUN_NOISE


def _judged(
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
    index: int,
    name: str,
    seen: list[tuple[Cell, _Suspect]],
    noise: float,
) -> Outlier | None:
    """The run, if what it reports in most of the cells that it is part of cannot be."""
    t = trajectories[index]
    own = [c for c in cells if index in c.runs and _run_at(t, c.log_tokens) == name]
    if 2 * len(seen) <= len(own):
        return None
    excess = float(np.median([s.excess for _, s in seen]))
    scale = float(np.median([s.scale for _, s in seen]))
    deviations = excess / (max(noise, USUAL_RUN_NOISE) * scale)
    if deviations < NAMED or excess < NAMED_NATS:
        return None
    cell, suspect = max(seen, key=lambda found: found[0].log_tokens)
    observed = float(cell.log_losses[np.flatnonzero(cell.runs == index)[0]])
    return Outlier(
        run=name,
        params=t.params,
        learning_rate=t.learning_rate,
        batch_size=t.batch_size,
        loss=float(np.exp(observed)),
        expected=float(np.exp(observed + suspect.excess)),
        deviations=deviations,
        sure=_is_sure(deviations, excess, len(cell.runs) - 1 - TERMS),
    )


def _is_sure(deviations: float, excess: float, freedom: int) -> bool:
    """Beyond doubt, with so many runs more than a quadratic needs: few of them often agree by chance."""
    if freedom < 1:
        return False
    return deviations >= SURE * (1.0 + 2.0 / freedom) and excess >= SURE_NATS
