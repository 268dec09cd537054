"""How both routes do on the part of a user's own data that neither was shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.estimates import Estimate, Target
from isoloss.laws.held_out import HeldOutCell, JudgedCells, judged_cells, split
from isoloss.laws.model import FitOptions
from isoloss.laws.results import HeldOutScore
from isoloss.usual import USUAL_SCATTER

SAMPLES = 50
"""Bootstrap samples of the fits that are judged; they get the same seed whatever the user's is."""


def held_out_scores(
    trajectories: Sequence[Trajectory], estimates: Sequence[Estimate], options: FitOptions
) -> tuple[HeldOutScore, ...]:
    """Hold out the largest size (or the latest tokens), fit the routes that stand to the rest, ask them there.

    None of a route that cannot be fitted to the rest, or if no cell that was held out has a minimum of its own.
    """
    available = [estimate for estimate in estimates if estimate.refusal is None]
    if not available:
        return ()
    shown, held_out = split(trajectories)
    cells = judged_cells(held_out)
    if not cells.late or not shown:
        return ()
    quick = replace(options, bootstrap_samples=SAMPLES, seed=0)
    refits = [estimate.refit(shown, quick) for estimate in available]
    return tuple(_score(refit, cells) for refit in refits if refit.refusal is None)


def _score(estimate: Estimate, cells: JudgedCells) -> HeldOutScore:
    """Regret in all cells; errors of ln LR and ln B in the late ones, which answers resemble."""
    # Asked once per cell: late ones are among all.
    answers = {id(cell): _answer(estimate, cell) for cell in cells.every}
    regrets = np.array([cell.regret(*answers[id(cell)][0]) for cell in cells.every])
    # A cell whose own optimum is poorly known judges little.
    weights = [1.0 / (USUAL_SCATTER**2 + cell.variance.mean()) for cell in cells.every]
    late = [(answers[id(cell)], cell) for cell in cells.late]
    squares = np.array([(answer[0] - cell.vertex) ** 2 for answer, cell in late])
    noise = np.array([answer.var(axis=0) + cell.variance for answer, cell in late])
    error = np.sqrt(squares.mean(axis=0))
    unexplained = np.sqrt(np.maximum((squares - noise).mean(axis=0), 0.0))
    return HeldOutScore(
        route=estimate.route,
        regret_mean=float(np.average(regrets, weights=weights)),
        regret_max=float(np.max(regrets)),
        log_learning_rate_error=float(error[0]),
        log_batch_size_error=float(error[1]),
        unexplained_learning_rate_error=float(unexplained[0]),
        unexplained_batch_size_error=float(unexplained[1]),
    )


def _answer(estimate: Estimate, cell: HeldOutCell) -> Array:
    """(draws, 2) of ln LR and ln B at the cell, the estimate first."""
    target = Target(np.full(estimate.draws + 1, cell.log_flops), cell.log_params, cell.log_tokens)
    answer = estimate.answer(target)
    assert answer is not None  # an estimate without a refusal answers at a known size
    return np.stack([answer.log_rate, answer.log_batch], axis=1)
