"""The joint surface as an estimate alongside the iso-loss laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isoloss.laws.bootstrap import DrawSource
from isoloss.laws.curves import OptimumPlanes, Quantity
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.estimates import OptimumDraws, Target, count_draws, with_draws
from isoloss.laws.model import FitOptions, Refusal, Route, Status
from isoloss.laws.results import SurfaceLaw
from isoloss.laws.surface.law import surface_law
from isoloss.laws.surface.size_trends import doubtful_trends, shift_without
from isoloss.laws.surface.token_range import fit_late_if_bent


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
    one_size = len({t.params for t in trajectories}) == 1
    trend = options.size_trend if one_size else None
    found = fit_late_if_bent(trajectories, trend)
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
