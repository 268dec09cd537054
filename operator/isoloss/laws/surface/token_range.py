"""From which share of their tokens on runs tell where the optimum is.

The law is a line over ln D. Where the best learning rate or batch size visibly bends over tokens, as after a warm-up or
where a batch size saturates, a line through whole runs is off at their end, which is what answers are for. A line through their
last part is off by much less there, and from there on. Where no bend shows, whole runs tell the exponents of D far better;
where too few runs of a size came that far, it would be lost. Where that part still bends, its last part is better again, but
does not tell how far it bends itself: its interval keeps the bend of the longer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from isoloss.laws.data.cells import LATE, Cell, make_cells
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.model import Refusal
from isoloss.laws.surface.joint_fit import fit_surface
from isoloss.laws.surface.uncertainty import Uncertainty

FEWEST_SIZES = 2
"""That show a trend over sizes."""
LATER = 0.5
"""Share of their tokens from which on runs are read where those from LATE on still bend. Later ones, of 0.3 of runs, tell no bend and little of exponents."""


def fit_late_if_bent(
    trajectories: Sequence[Trajectory], fewest_sizes: int = FEWEST_SIZES
) -> tuple[Uncertainty, list[Cell]] | Refusal:
    """The surface and its cells: through whole runs, or from LATE or LATER of their tokens on if its optimum clearly bends over them.

    Refused with fewer than `fewest_sizes` sizes; a single one has a surface, but shows no trend over sizes.
    """
    cells = make_cells(trajectories)
    fit = fit_surface(trajectories, cells, fewest_sizes)
    if isinstance(fit, Refusal):
        return fit
    known = Uncertainty(fit)
    if not fit.is_convex or not known.own_bends.are_clear:
        return known, cells
    late = _from(LATE, trajectories, known)
    if late is None or not late[0].own_bends.are_clear:
        return late or (known, cells)
    later = _from(LATER, trajectories, late[0])
    if later is None:
        return late
    return replace(later[0], longer_bend=late[0].token_bend), later[1]


def _from(
    earliest: float, trajectories: Sequence[Trajectory], known: Uncertainty
) -> tuple[Uncertainty, list[Cell]] | None:
    """Through their part from `earliest` on; None if it has no optimum, or not all sizes."""
    cells = make_cells(trajectories, earliest=earliest)
    fit = fit_surface(trajectories, cells, len(set(known.fit.sizes)))
    if isinstance(fit, Refusal) or not fit.is_convex:
        return None
    return Uncertainty(fit), cells
