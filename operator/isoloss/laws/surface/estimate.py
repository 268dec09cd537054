"""The joint surface as an estimate alongside the iso-loss laws, and which of its trends over sizes may be chance.

Sizes that differ in width have different best learning rates; sizes that differ in their experts need
not. A few sizes that each deviate by some per cent show a trend even if there is none, and its effect
grows with the extrapolation. So a trend within the scatter of sizes is doubtful if the largest size is
predicted better without it, from the others. Few sizes do not decide such a question for good: the answer is midway
between both, half of its draws keep the trend, and all of them its spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.bootstrap import DrawSource
from isoloss.laws.curves import OptimumPlanes, Quantity
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.estimates import OptimumDraws, Target, count_draws, with_draws
from isoloss.laws.held_out import FEWEST_SIZES, HeldOutCell, judged_cells, split
from isoloss.laws.model import FitOptions, Refusal, Route, Status
from isoloss.laws.quantiles import student_quantiles
from isoloss.laws.results import SurfaceLaw
from isoloss.laws.surface.form_error import scatter_freedom
from isoloss.laws.surface.law import surface_law
from isoloss.laws.surface.terms import OF_BATCH, OF_RATE, TRENDS, LawTerm, planes
from isoloss.laws.surface.token_range import fit_late_if_bent
from isoloss.laws.surface.uncertainty import Uncertainty

SURE = 0.95
"""Quantile of the trend's error beyond which it is no chance: 90 %, two-sided."""


@dataclass(frozen=True)
class JointSurfaceEstimate:
    """The optimum over ln N and ln D, and its draws."""

    law: SurfaceLaw
    plane_draws: OptimumPlanes | None = None
    route: Route = "surface"

    @property
    def refusal(self) -> Refusal | None:
        """Why there is no surface."""
        return self.law.refusal

    @property
    def draws(self) -> int:
        """Bootstrap draws, the estimate not counted."""
        return count_draws(self.plane_draws)

    def answer(self, target: Target) -> OptimumDraws | None:
        """At the target's size and tokens; without a size, on the sweep's own ratio of tokens to parameters."""
        law, place = self.law, target.place(self.law)
        if law.planes is None or place is None:
            return None
        planes = with_draws(law.planes, self.plane_draws, target.draws)
        return OptimumDraws(*planes.at(*place), deviation_scale=planes.deviation_scale)

    def refit(
        self, trajectories: Sequence[Trajectory], options: FitOptions
    ) -> JointSurfaceEstimate:
        """The same from these trajectories alone, with the same trends over sizes halved."""
        return fit_joint_surface(trajectories, options, "fitted", self.law.halved_trends)


def fit_joint_surface(
    trajectories: Sequence[Trajectory],
    options: FitOptions,
    fitted: Status,
    doubtful: Sequence[Quantity] | None = None,
) -> JointSurfaceEstimate:
    """The surface through all cells.

    `doubtful` names trends over sizes to halve; None: the trajectories themselves decide.
    """
    found = fit_late_if_bent(trajectories)
    if isinstance(found, Refusal):
        return JointSurfaceEstimate(SurfaceLaw("refused", refusal=found))
    known, cells = found
    scales = known.deviation_scales(DrawSource(options.seed, 14, options.bootstrap_samples))
    draws = known.draw(DrawSource(options.seed, 2, options.bootstrap_samples), scales)
    if doubtful is None:
        doubtful = doubtful_trends(trajectories, known)
    shift = shift_without(known, doubtful)
    law, optimum_draws = surface_law(
        known, trajectories, cells, draws, scales, shift, options, fitted
    )
    law = replace(law, halved_trends=tuple(doubtful))
    return JointSurfaceEstimate(law, optimum_draws)


def doubtful_trends(
    trajectories: Sequence[Trajectory], known: Uncertainty
) -> tuple[Quantity, ...]:
    """The hyperparameters that may be the same at every size; none for two sizes."""
    unclear = [] if len(set(known.fit.sizes)) < FEWEST_SIZES else _within_scatter(known)
    if not unclear:
        return ()
    shown, held_out = split(trajectories)
    cells = judged_cells(held_out).late
    rest = fit_late_if_bent(shown)
    if isinstance(rest, Refusal) or not cells or not rest[0].fit.is_convex:
        return ()
    rest_known = rest[0]
    options = chain.from_iterable(combinations(unclear, k) for k in range(len(unclear) + 1))
    # The first of equals is the one that leaves out least.
    return min(options, key=lambda left_out: _regret(rest_known, left_out, cells))


def _within_scatter(known: Uncertainty) -> list[Quantity]:
    fit = known.fit
    if not fit.is_convex:
        return []
    errors = np.sqrt(np.diag(known.law_covariance))
    freedom = scatter_freedom(len(set(fit.sizes)))
    widest = float(student_quantiles(freedom, np.array([SURE]))[0])
    law = known.law
    return [name for name, at in TRENDS.items() if abs(law[at]) < widest * errors[at]]


def _regret(
    known: Uncertainty, left_out: Sequence[Quantity], cells: Sequence[HeldOutCell]
) -> float:
    law = planes(known.law + shift_without(known, left_out), known.fit.centre)
    answers = [law.at(cell.log_params, cell.log_tokens) for cell in cells]
    return float(
        np.mean([c.regret(float(x), float(y)) for c, (x, y) in zip(cells, answers, strict=True)])
    )


def shift_without(known: Uncertainty, left_out: Sequence[Quantity]) -> Array:
    """(6,) to add to the law's coefficients so that these trends are none and the others answer for it."""
    at = [TRENDS[name] for name in left_out]
    if not at or not known.fit.is_convex:
        return np.zeros(len(LawTerm))
    covariance = known.law_covariance.copy()
    covariance[OF_RATE, OF_BATCH] = covariance[OF_BATCH, OF_RATE] = 0.0
    gain = covariance[:, at] @ np.linalg.inv(covariance[np.ix_(at, at)])
    return np.asarray(-gain @ known.law[at], dtype=float)
