"""A search at one moment: its sizes from the cheapest to the most expensive, and what was seen of their points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from isoloss.laws import Run
from isoloss.search import model
from isoloss.search.forecast import FEWEST_SHARE, Excess, leader_of
from isoloss.search.lattice import grid_points
from isoloss_contract.ledger import IntentAction

RUNGS = (FEWEST_SHARE, 0.6, 1.0)
"""Shares of the size's tokens at which points are judged."""
REACHED = 0.99
"""Share of its wanted tokens at which a point is there: runs end at whole steps."""


@dataclass(frozen=True)
class Race:
    """One size's standing."""

    leader: model.Point
    excesses: dict[model.Point, Excess]
    """How far each of the others is above the leader."""


@dataclass(frozen=True)
class State:
    """What decisions depend on. `of` sorts, so that the order in which a caller gives things does not matter."""

    sizes: tuple[model.Size, ...]
    """Cheapest first."""
    seen: tuple[model.Seen, ...]
    """In the order of their points; their replicates left out."""
    replicates: tuple[model.Seen, ...]
    """Repeats of points with other seeds."""
    options: model.SearchOptions
    noise: float
    """Standard deviation of a loss from seed to seed, nats."""

    @staticmethod
    def of(
        sizes: Sequence[model.Size],
        seen: Sequence[model.Seen],
        options: model.SearchOptions,
        noise: float,
    ) -> State:
        """The state of these observations."""
        ordered = sorted(sizes, key=lambda size: (size.point_flops, size.name))
        found = sorted(seen, key=lambda s: s.point)
        return State(
            tuple(ordered),
            tuple(s for s in found if not s.point.replicate),
            tuple(s for s in found if s.point.replicate),
            options,
            noise,
        )

    @property
    def all_seen(self) -> tuple[model.Seen, ...]:
        """Points and their replicates."""
        return (*self.seen, *self.replicates)

    def size_of(self, point: model.Point) -> model.Size:
        """The point's size."""
        return next(size for size in self.sizes if size.name == point.size)

    def seen_of(self, size: model.Size) -> tuple[model.Seen, ...]:
        """Points of one size."""
        return tuple(s for s in self.seen if s.point.size == size.name)

    def open_of(self, size: model.Size) -> list[model.Seen]:
        """Points of one size that were to run and may run on."""
        return [s for s in self.seen_of(size) if s.wanted > 0.0 and not s.closed]

    def has(self, seen: model.Seen, share: float) -> bool:
        """Whether a point has this share of its size's tokens."""
        return seen.tokens >= REACHED * share * self.size_of(seen.point).tokens

    def race_at(self, size: model.Size) -> Race | None:
        """The race of the points that went far enough to be judged; None if there are none."""
        if size.name not in self._races:
            runs = {
                s.point: s.run
                for s in self.open_of(size)
                if s.run is not None and self.has(s, FEWEST_SHARE)
            }
            found = Race(*leader_of(runs, size.tokens, self.noise)) if runs else None
            self._races[size.name] = found
        return self._races[size.name]

    @cached_property
    def _races(self) -> dict[str, Race | None]:
        return {}

    def runs(self, sizes: Sequence[model.Size]) -> list[Run]:
        """All trajectories of these sizes; those of points that did not come to their end are marked so."""
        names = {size.name for size in sizes}
        return [
            replace(s.run, finished=self.has(s, 1.0))
            for s in self.all_seen
            if s.run is not None and len(s.run.tokens) and s.point.size in names
        ]

    @property
    def additions_left(self) -> int:
        """How many more points beyond the grids may be added."""
        grids = {point for size in self.sizes for point in grid_points(size)}
        added = sum(s.point not in grids for s in self.seen)
        return max(self.options.max_added_points - added, 0)

    @property
    def spent_flops(self) -> float:
        """FLOPs of everything seen."""
        sizes = {size.name: size for size in self.sizes}
        return sum(sizes[s.point.size].token_flops * s.tokens for s in self.all_seen)

    @property
    def flops_left(self) -> float:
        """Of the budget; infinite without one."""
        budget = self.options.budget_flops
        return math.inf if budget is None else budget - self.spent_flops

    @property
    def seconds_left(self) -> float:
        """Accelerator seconds; infinite without a limit."""
        left = self.options.seconds_left
        return math.inf if left is None else left

    def seconds_of(self, decision: model.Decision) -> float:
        """Accelerator seconds that following a decision to run takes."""
        return decision.flops * (self.size_of(decision.point).seconds_per_flop or 0.0)

    def run_to(
        self, point: model.Point, share: float, reason: model.Reason, *, added: bool = False
    ) -> model.Decision:
        """The decision to run a point to a share of its size's tokens."""
        size = self.size_of(point)
        done = next((s.tokens for s in self.all_seen if s.point == point), 0.0)
        tokens = share * size.tokens
        further = max(size.trained_tokens(point.batch_size, tokens) - done, 0.0)
        cost = size.token_flops * further
        return model.Decision(point, IntentAction.RUN, tokens, reason, added=added, flops=cost)
