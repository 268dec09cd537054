"""From which share of their tokens on runs tell where the optimum is.

The law is a line over ln D. Where the best learning rate or batch size visibly bends over tokens, as after a warm-up or
where a batch size saturates, a line through whole runs is off at their end, which is what answers are for. A line through their
last part is off by much less there, and from there on. Where no bend shows, whole runs tell the exponents of D far better;
where too few runs of a size came that far, it would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from isoloss.laws.data.cells import LATE, Cell, make_cells
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.model import Refusal, SizeTrend
from isoloss.laws.surface.joint_fit import fit_surface
from isoloss.laws.surface.uncertainty import Uncertainty


def fit_late_if_bent(
    trajectories: Sequence[Trajectory], fewest_sizes: int = 2, trend: SizeTrend | None = None
) -> tuple[Uncertainty, list[Cell]] | Refusal:
    """The surface and its cells: through whole runs, or from LATE of their tokens on if its optimum clearly bends over them.

    `trend` is the one over sizes, for a single size.
    """
    cells = make_cells(trajectories)
    fit = fit_surface(trajectories, cells, fewest_sizes)
    if isinstance(fit, Refusal):
        return fit
    known = Uncertainty(fit, trend)
    if not fit.is_convex or not known.bends_over_tokens:
        return known, cells
    late_cells = make_cells(trajectories, earliest=LATE)
    late = fit_surface(trajectories, late_cells, fewest_sizes)
    if isinstance(late, Refusal) or not late.is_convex or set(late.sizes) != set(fit.sizes):
        return known, cells
    return Uncertainty(late, trend), late_cells
