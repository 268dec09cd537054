"""What the two routes have in common: each answers at a target, refuses, and can be fitted to part of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeVar

from isoloss.laws.arrays import Array
from isoloss.laws.curves import Drawn, Number
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.model import FitOptions, Refusal, Route
from isoloss.laws.results import SurfaceLaw


@dataclass(frozen=True)
class Target:
    """Where the optimum is wanted: numbers, or one entry per draw with the estimate first."""

    log_flops: Array
    """(draws,) ln C."""
    log_params: Number | None = None
    """ln N; None: of the compute-optimal size."""
    log_tokens: Number | None = None

    @property
    def draws(self) -> int:
        """How many, the estimate not counted."""
        return len(self.log_flops) - 1

    def place(self, surface: SurfaceLaw) -> tuple[Number, Number] | None:
        """(ln N, ln D), as given or on the sweep's frontier; None if neither is known."""
        if self.log_params is not None and self.log_tokens is not None:
            return self.log_params, self.log_tokens
        return surface.on_the_frontier(self.log_flops)


class OptimumDraws(NamedTuple):
    """ln LR and ln B, (draws,) each, the estimate first."""

    log_rate: Array
    log_batch: Array
    deviation_scale: Number = 1.0
    """See curves.OptimumPlanes."""


class Estimate(Protocol):
    """One route's laws."""

    @property
    def route(self) -> Route:
        """Its name."""
        ...

    @property
    def refusal(self) -> Refusal | None:
        """Why it cannot answer; None if it can."""
        ...

    @property
    def draws(self) -> int:
        """Bootstrap draws, the estimate not counted."""
        ...

    def answer(self, target: Target) -> OptimumDraws | None:
        """The optimum there; as many draws as `target.log_flops` has. None if it cannot tell."""
        ...

    def refit(self, trajectories: Sequence[Trajectory], options: FitOptions) -> Self:
        """The same estimate from these trajectories alone, to hold the others out."""
        ...


Law = TypeVar("Law", bound=Drawn)


def with_draws(estimate: Law, draws: Law | None, count: int) -> Law:
    """The estimate and `count` of its draws; the estimate alone if there are none."""
    return estimate if draws is None else draws.take(slice(count)).after(estimate)


def count_draws(*groups: Drawn | None) -> int:
    """The draws that all of these laws have; 0 without any."""
    return min((group.count for group in groups if group is not None), default=0)
