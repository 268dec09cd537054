"""From which share of their tokens on runs tell where the optimum is.

The law is a line over ln D. Where the best learning rate or batch size visibly bends over tokens, as after a warm-up or
where a batch size saturates, a line through whole runs is off at their end, which is what answers are for. A line through their
last part is off by much less there, and from there on. Where no bend shows, whole runs tell the exponents of D far better;
where too few runs of a size came that far, it would be lost. Where that part still bends, its last part is better again.
"""

from collections.abc import Sequence

from isoloss.laws.data.cells import LATE, LATER, Cell, make_cells
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.model import Refusal
from isoloss.laws.surface.joint_fit import fit_surface
from isoloss.laws.surface.uncertainty import Uncertainty


def fit_late_if_bent(
    trajectories: Sequence[Trajectory], cells: Sequence[Cell]
) -> tuple[Uncertainty, Sequence[Cell]] | Refusal:
    """The surface and its cells: through whole runs, or from LATE or LATER of their tokens on if its optimum clearly bends over them.

    `cells` are those of whole runs.
    """
    fit = fit_surface(trajectories, cells)
    if isinstance(fit, Refusal):
        return fit
    found: tuple[Uncertainty, Sequence[Cell]] = Uncertainty(fit), cells
    # Later ones, of 0.3 of runs, tell no bend and little of exponents.
    for earliest in (LATE, LATER):
        if not found[0].fit.is_convex or not found[0].curves_over_tokens:
            break
        later = _from(earliest, trajectories, {c.log_params for c in cells})
        if later is None:
            break
        found = later
    return found


def _from(
    earliest: float, trajectories: Sequence[Trajectory], sizes: set[float]
) -> tuple[Uncertainty, list[Cell]] | None:
    """Through the part of these sizes' runs from `earliest` on; None if it has no optimum, or not all of them."""
    cells = [c for c in make_cells(trajectories, earliest=earliest) if c.log_params in sizes]
    fit = fit_surface(trajectories, cells)
    if isinstance(fit, Refusal) or not fit.is_convex or set(fit.sizes) != sizes:
        return None
    return Uncertainty(fit), cells
