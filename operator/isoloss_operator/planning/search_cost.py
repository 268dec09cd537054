"""What a sequential search is expected to cost, and what it costs at worst."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from isoloss.design import Target
from isoloss.formatting import number
from isoloss_operator.planning.points import PlannedPoint, by_size


@dataclass(frozen=True)
class MeasuredShare:
    """FLOPs of searches over those of their whole grids."""

    lines: int
    """Batch sizes, and learning rates, of the grids."""
    sweeps: int
    mean: float
    worst: float
    at_work: tuple[float, ...]
    """Jobs on average, with each number of PARALLELISM at most."""

    def jobs_at_work(self, parallelism: int) -> float:
        """On average over a search with so many Jobs at a time at most: between those measured as a line over the
        logarithm, beyond them as the last."""
        return float(np.interp(math.log(parallelism), np.log(PARALLELISM), self.at_work))


PARALLELISM: Final = (1, 2, 4, 8, 16)
MEASURED: Final = (
    MeasuredShare(lines=3, sweeps=135, mean=0.41, worst=0.69, at_work=(1.0, 1.8, 2.8, 4.0, 4.4)),
    MeasuredShare(lines=4, sweeps=112, mean=0.26, worst=0.38, at_work=(1.0, 1.8, 2.9, 4.2, 4.7)),
    MeasuredShare(lines=5, sweeps=85, mean=0.18, worst=0.28, at_work=(1.0, 1.8, 2.9, 4.1, 4.6)),
)
"""On 1 December 2026, by `make bench-search`, FLOPs as asked for: docs/evidence/search.md, by grid size."""
MEASURED_TARGET: Final = 200.0
"""Times the compute of the largest size's runs, for which searches without a target are (isoloss/search/plan.py)."""
SHARE_BY_TARGET: Final = {
    40: 0.45,
    100: 0.71,
    200: 1.0,
    500: 1.57,
    1000: 1.95,
    2500: 2.9,
    5000: 3.6,
}
"""Shares for other targets over those for MEASURED_TARGET, the same for all grids: 126 synthetic sweeps of `make bench-search
ARGS=--targets`."""
LOSS_BY_TARGET: Final = {40: 2.0, 100: 1.4, 200: 1.0}
"""What answers of a search lose at its target, over those of the whole grids; there, too."""


@dataclass(frozen=True)
class SizeShare:
    """What to expect of one size."""

    name: str
    flops: float
    """FLOPs of its whole grid."""
    measured: MeasuredShare
    is_beyond: bool
    """Its grid has fewer or more lines than any that was measured."""


@dataclass(frozen=True)
class SearchEstimate:
    """FLOPs of a search of all sizes."""

    sizes: tuple[SizeShare, ...]
    added_flops: float
    """FLOPs of as many points of the most expensive size as may be added."""
    max_added_points: int
    target_factor: float
    """The target's FLOPs over those of the most expensive point."""

    @property
    def grid_flops(self) -> float:
        """FLOPs of the whole grids."""
        return sum(size.flops for size in self.sizes)

    @property
    def expected_flops(self) -> float:
        """The mean measured share of each size's grid."""
        return self._by_target * self._measured_flops

    @property
    def _measured_flops(self) -> float:
        """Expected for a target of MEASURED_TARGET."""
        return sum(size.flops * size.measured.mean for size in self.sizes)

    @property
    def _by_target(self) -> float:
        """What the target makes of that."""
        return min(
            _at(SHARE_BY_TARGET, self.target_factor), self.worst_flops / self._measured_flops
        )

    @property
    def worst_flops(self) -> float:
        """Every point of the grids to its end, and every point that may be added: no search costs more."""
        return self.grid_flops + self.added_flops

    def elapsed(self, one_by_one: Mapping[str, float], parallelism: int) -> float:
        """Expected time to the end of the search, in the unit of `one_by_one`: by size, the time that its whole grid
        takes with one Job at a time."""
        return self._by_target * sum(
            one_by_one[size.name] * size.measured.mean / size.measured.jobs_at_work(parallelism)
            for size in self.sizes
        )

    @property
    def basis(self) -> str:
        """What the expected cost rests on, in a sentence."""
        used = {size.measured.lines: size.measured for size in self.sizes}
        shares = "; ".join(
            f"{each.lines} x {each.lines}: {each.mean:.2f} of the grid's FLOPs on average, "
            f"{each.worst:.2f} at most, {each.sweeps} sweeps"
            for _, each in sorted(used.items())
        )
        nearest = ", the nearest grids to these" if any(s.is_beyond for s in self.sizes) else ""
        return (
            f"Measured on published and synthetic sweeps ({shares}{nearest}) for a target of {MEASURED_TARGET:.0f} times the "
            f"largest point; this one is {number(self.target_factor, 2)} times."
        )


def expected_share(lines: int, target_factor: float) -> float:
    """FLOPs of a search over those of its whole grid, on average, of grids of so many lines; see SearchEstimate.target_factor."""
    return _measured(lines).mean * _at(SHARE_BY_TARGET, target_factor)


def expected_loss(target_factor: float) -> float:
    """What the answer of a search loses at its target, over that of the whole grids; see SearchEstimate.target_factor."""
    return _at(LOSS_BY_TARGET, target_factor)


def _at(measured: Mapping[int, float], target_factor: float) -> float:
    logs = np.log(list(measured))
    return float(np.interp(math.log(target_factor), logs, list(measured.values())))


def _measured(lines: float) -> MeasuredShare:
    return min(MEASURED, key=lambda each: abs(each.lines - lines))


def search_estimate(
    points: Sequence[PlannedPoint], max_added_points: int, target: Target | None = None
) -> SearchEstimate:
    """The estimate for these points: all of a sweep's, with one seed."""
    sizes = tuple(_share(name, own) for name, own in by_size(points).items())
    dearest = max((point.flops for point in points), default=0.0)
    factor = target.flops / dearest if target and dearest else MEASURED_TARGET
    return SearchEstimate(sizes, max_added_points * dearest, max_added_points, factor)


def _share(name: str, points: Sequence[PlannedPoint]) -> SizeShare:
    # A grid of 2 x 8 has as many points as one of 4 x 4.
    lines = math.sqrt(len(points))
    measured = _measured(lines)
    return SizeShare(
        name=name,
        flops=sum(point.flops for point in points),
        measured=measured,
        is_beyond=not MEASURED[0].lines <= round(lines) <= MEASURED[-1].lines,
    )
