"""The joint surface's law, and which of its trends over sizes may be chance.

Sizes that differ in width have different best learning rates; sizes that differ in their experts need
not. A few sizes that each deviate by some per cent show a trend even if there is none, and its effect
grows with the extrapolation. So a trend within the scatter of sizes is doubtful if the largest size is
predicted better without it, from the others. Few sizes do not decide such a question for good: the answer is midway
between both, and its error has the distance to either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.curves import Quantity
from isoloss.laws.data.cells import Cell, late_cells
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.model import Refusal, Status
from isoloss.laws.quadratic import (
    NEAR,
    TERMS,
    Quadratic,
    fit_quadratic,
    is_determined,
    vertex_of,
)
from isoloss.laws.results import SurfaceLaw
from isoloss.laws.surface.law import surface_law
from isoloss.laws.surface.terms import OF_BATCH, OF_RATE, TRENDS, LawTerm, trends
from isoloss.laws.surface.token_range import fit_late_if_bent
from isoloss.laws.surface.uncertainty import CLEAR, Uncertainty
from isoloss.usual import FEWEST_SIZES


def fit_joint_surface(
    trajectories: Sequence[Trajectory], cells: Sequence[Cell], fitted: Status
) -> SurfaceLaw:
    """The surface through these cells, or those of the last part of runs."""
    found = fit_late_if_bent(trajectories, cells)
    if isinstance(found, Refusal):
        return SurfaceLaw("refused", refusal=found)
    known, used = found
    unsupported = unsupported_trends(trajectories, cells, known)
    shift = 0.5 * shift_without(known, unsupported)
    law = surface_law(known, trajectories, used, shift, fitted)
    return replace(law, halved_trends=tuple(unsupported))


def unsupported_trends(
    trajectories: Sequence[Trajectory], cells: Sequence[Cell], known: Uncertainty
) -> tuple[Quantity, ...]:
    """The hyperparameters that may be the same at every size; none where the others would show no trend without one of them."""
    sizes = sorted(set(known.fit.sizes))
    unclear = [] if len(sizes) <= FEWEST_SIZES else _unclear(known)
    if not unclear:
        return ()
    largest = [c for c in late_cells(cells) if c.log_params == sizes[-1]]
    found = [_own_valley(cell, trajectories) for cell in largest]
    judges = [valley for valley in found if valley is not None]
    rest = fit_late_if_bent(trajectories, [c for c in cells if c.log_params != sizes[-1]])
    if isinstance(rest, Refusal) or not judges or not rest[0].fit.is_convex:
        return ()
    others = rest[0]
    options = chain.from_iterable(combinations(unclear, k) for k in range(len(unclear) + 1))
    # The first of equals is the one that leaves out least.
    return min(options, key=lambda left_out: _waste(others, left_out, judges))


def _unclear(known: Uncertainty) -> list[Quantity]:
    if not known.fit.is_convex:
        return []
    errors, law = np.sqrt(np.diag(known.law_covariance)), known.law
    return [name for name, at in TRENDS.items() if abs(law[at]) < CLEAR * errors[at]]


@dataclass(frozen=True)
class _Valley:
    """A cell with its own parabola, whose minimum is inside its runs."""

    cell: Cell
    parabola: Quadratic
    lowest: float


def _own_valley(cell: Cell, trajectories: Sequence[Trajectory]) -> _Valley | None:
    runs = [trajectories[i] for i in cell.runs]
    x = np.log([t.learning_rate for t in runs])
    y = np.log([t.batch_size for t in runs])
    if len(runs) <= TERMS or not is_determined(x, y):
        return None
    excess = cell.waste - cell.waste.min()
    fit = fit_quadratic(x, y, cell.waste, 1.0 / (1.0 + (excess / NEAR[-1]) ** 2))
    vertex, lowest, convex = vertex_of(fit.coefficients, fit.centre)
    inside = x.min() <= vertex[0] <= x.max() and y.min() <= vertex[1] <= y.max()
    return _Valley(cell, fit, float(lowest)) if convex and inside else None


def _waste(known: Uncertainty, left_out: Sequence[Quantity], judges: Sequence[_Valley]) -> float:
    """Mean loss, relative, that the law's optima have above the judges' own."""
    law = trends(known.law + shift_without(known, left_out), known.fit.centre, known.curvatures)
    wasted = []
    for judge in judges:
        place = law.at(judge.cell.log_params, judge.cell.log_tokens)
        above = judge.parabola.at(*place) - judge.lowest
        wasted.append(float(above) * judge.cell.slope * float(np.exp(judge.cell.log_losses.min())))
    return float(np.mean(wasted))


def shift_without(known: Uncertainty, left_out: Sequence[Quantity]) -> Array:
    """(6,) to add to the law's coefficients so that these trends are none and the others answer for it."""
    at = [TRENDS[name] for name in left_out]
    if not at or not known.fit.is_convex:
        return np.zeros(len(LawTerm))
    covariance = known.law_covariance.copy()
    covariance[OF_RATE, OF_BATCH] = covariance[OF_BATCH, OF_RATE] = 0.0
    gain = covariance[:, at] @ np.linalg.inv(covariance[np.ix_(at, at)])
    return np.asarray(-gain @ known.law[at], dtype=float)
