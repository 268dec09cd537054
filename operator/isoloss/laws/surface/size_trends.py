"""Whether the best learning rate and batch size depend on the size at all, at equal tokens.

Sizes that differ in width have different best learning rates; sizes that differ in their experts need
not. A few sizes that each deviate by some per cent show a trend even if there is none, and its effect
grows with the extrapolation. So a trend within the scatter of sizes is doubtful if the largest size is
predicted better without it, from the others. Few sizes do not decide such a question for good: the answer is midway
between both, half of its draws keep the trend, and all of them its spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.curves import Quantity
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.held_out import FEWEST_SIZES, HeldOutCell, judged_cells, split
from isoloss.laws.model import Refusal
from isoloss.laws.quantiles import student_quantiles
from isoloss.laws.surface.form_error import scatter_freedom
from isoloss.laws.surface.terms import OF_BATCH, OF_RATE, TRENDS, LawTerm, planes
from isoloss.laws.surface.token_range import fit_late_if_bent
from isoloss.laws.surface.uncertainty import Uncertainty

SURE = 0.95
"""Quantile of the trend's error beyond which it is no chance: 90 %, two-sided."""


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
