"""What a sweep saves: its cost against a grid on the target.

A ratio of FLOPs under one convention; mixing conventions would produce a false saving.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SearchCost:
    """FLOPs of a search with proxies and of a direct grid on the target model."""

    direct_flops: float
    proxy_flops: float
    run_flops: float | None = None
    """Of one run of the target; None: not known."""

    def __post_init__(self) -> None:
        for name, flops in (("direct", self.direct_flops), ("proxy", self.proxy_flops)):
            if not (math.isfinite(flops) and flops > 0):
                raise ValueError(f"{name} FLOPs must be positive and finite, not {flops}")

    @property
    def share_of_run(self) -> float | None:
        """Proxies over one run of the target."""
        return None if self.run_flops is None else self.proxy_flops / self.run_flops

    @property
    def saving(self) -> float:
        """1 - proxies / direct. Negative if the proxies cost more than the grid they replace."""
        return 1 - self.proxy_flops / self.direct_flops


def search_cost(*, sweep_flops: float, direct_runs: int, run_flops: float) -> SearchCost:
    """A sweep compared with `direct_runs` runs of the target of `run_flops` each.

    A search on the target itself would take as many runs as the sweep's largest grid has points. Raises
    ValueError if a number is not positive and finite.
    """
    return SearchCost(
        direct_flops=direct_runs * run_flops, proxy_flops=sweep_flops, run_flops=run_flops
    )
