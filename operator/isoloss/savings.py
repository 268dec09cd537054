"""What a sweep saves: its cost against a grid on the target, and compute to the same loss.

Both are ratios of FLOPs under one convention; mixing conventions would produce a false saving.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isoloss.laws import Contour, Laws, Optimum


@dataclass(frozen=True)
class SearchCost:
    """FLOPs of a search with proxies and of a direct grid on the target model."""

    direct_flops: float
    proxy_flops: float

    def __post_init__(self) -> None:
        for name, flops in (("direct", self.direct_flops), ("proxy", self.proxy_flops)):
            if not (math.isfinite(flops) and flops > 0):
                raise ValueError(f"{name} FLOPs must be positive and finite, not {flops}")

    @property
    def saving(self) -> float:
        """1 - proxies / direct. Negative if the proxies cost more than the grid they replace."""
        return 1 - self.proxy_flops / self.direct_flops

    @property
    def ratio(self) -> float:
        """How many times cheaper the proxies are."""
        return self.direct_flops / self.proxy_flops


def search_cost(*, sweep_flops: float, direct_runs: int, run_flops: float) -> SearchCost:
    """A sweep compared with `direct_runs` runs of the target of `run_flops` each.

    A search on the target itself would take as many runs as the sweep's largest grid has points. Raises
    ValueError if a number is not positive and finite.
    """
    return SearchCost(direct_flops=direct_runs * run_flops, proxy_flops=sweep_flops)


@dataclass(frozen=True)
class IsoLossSaving:
    """Compute to one loss level: at a reference configuration, and at the optimum."""

    loss: float
    reference_flops: float
    optimal_flops: float

    @property
    def saving(self) -> float:
        """Share of the reference's compute that the optimum saves; negative if it needs more."""
        return 1 - self.optimal_flops / self.reference_flops


def iso_loss_saving(*, loss: float, reference_flops: float, optimal_flops: float) -> IsoLossSaving:
    """What training at the optimum saves against a reference that reaches the same loss (nats per token)."""
    for name, flops in (("reference", reference_flops), ("optimal", optimal_flops)):
        if not (math.isfinite(flops) and flops > 0):
            raise ValueError(f"{name} FLOPs must be positive and finite, not {flops}")
    return IsoLossSaving(loss, reference_flops, optimal_flops)


def iso_loss_savings(laws: Laws) -> tuple[IsoLossSaving, ...]:
    """Per size and loss level, from high loss to low: the optimum against the grid's median run.

    Runs that never reached the level count with the tokens they had. That can only lower the median,
    so that the saving is never overstated.
    """
    found = [_at_level(optimum, laws.contours) for optimum in laws.optima]
    known = [saving for saving in found if saving is not None]
    return tuple(sorted(known, key=lambda saving: -saving.loss))


def _at_level(optimum: Optimum, contours: tuple[Contour, ...]) -> IsoLossSaving | None:
    if optimum.tokens is None or optimum.flops is None or optimum.status == "refused":
        return None
    for contour in contours:
        if contour.params == optimum.params and math.isclose(contour.loss, optimum.loss):
            tokens = np.exp(contour.log_tokens[np.isfinite(contour.log_tokens)])
            if not tokens.size:
                return None
            reference = optimum.flops * float(np.median(tokens)) / optimum.tokens
            return IsoLossSaving(optimum.loss, reference, optimum.flops)
    return None
