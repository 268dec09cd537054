"""A sweep's plan: its sizes with their grids, and what a search of them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isoloss.errors import BadInput
from isoloss.savings import SearchCost, search_cost
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.plan_command.figures import (
    Elapsed,
    Pace,
    PlacedSize,
    SizePlan,
    elapsed_hours,
    placed_grids,
    search_of,
    sizes_of,
)
from isoloss_operator.planning.architectures import UnsupportedModel
from isoloss_operator.planning.placement import placements, with_placed_grids
from isoloss_operator.planning.search_cost import SearchEstimate
from isoloss_operator.planning.specs import InvalidSpec


@dataclass(frozen=True)
class Planned:
    """What a sweep would train."""

    written: ScalingSweepSpec
    """With derived proxies, grids as in the manifest."""
    spec: ScalingSweepSpec
    """With a grid for every size."""
    placed: Sequence[PlacedSize]
    sizes: Sequence[SizePlan]
    search: SearchEstimate | None

    @property
    def flops(self) -> float:
        """FLOPs of the whole grids."""
        return sum(size.flops for size in self.sizes)

    def hours(self, pace: Pace) -> float:
        """Accelerator hours of the whole grids."""
        return sum(pace.hours(size) for size in self.sizes)

    def elapsed(self, pace: Pace) -> Elapsed:
        """How long it takes with as many Jobs at a time as the spec allows."""
        return elapsed_hours(self.spec, self.sizes, pace, self.search)

    def cost(self, target_params: float, target_tokens: float) -> SearchCost:
        """Compared with as many runs of the target as the largest size has points."""
        return search_cost(
            sweep_flops=self.flops,
            direct_runs=self.spec.direct_runs,
            run_flops=6 * target_params * target_tokens,
        )


def planned(written: ScalingSweepSpec) -> Planned:
    """The plan of a spec with derived proxies. Raises BadInput if it cannot be trained."""
    try:
        placed = placements(written)
        spec = with_placed_grids(written, placed)
        sizes, search = sizes_of(spec), search_of(spec, len(placed))
    except (InvalidSpec, UnsupportedModel) as error:
        raise BadInput(str(error)) from error
    return Planned(written, spec, placed_grids(spec, placed), sizes, search)
