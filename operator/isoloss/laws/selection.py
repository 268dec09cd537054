"""Which of the two routes answers when no target size is given.

The joint surface, unless the iso-loss laws do better by more than noise on data that neither was shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.estimates import Estimate, Target
from isoloss.laws.held_out import FEWEST_SIZES, HeldOutCell, judged_cells, split
from isoloss.laws.model import FitOptions, Route
from isoloss.laws.results import HeldOutScore, Selection
from isoloss.usual import SEED_NOISE, USUAL_SCATTER

SURE = 2.0
INDEPENDENT = 4.0
"""Cells of one held-out size share their runs or their size: they count as this many."""
SAMPLES = 50
"""Bootstrap samples of the fits that are judged; they get the same seed whatever the user's is."""


def select_route(
    trajectories: Sequence[Trajectory], estimates: Sequence[Estimate], options: FitOptions
) -> Selection:
    """Hold out the largest size (or the latest tokens), fit both routes on the rest, compare."""
    available = [estimate for estimate in estimates if estimate.refusal is None]
    surface = any(estimate.route == "surface" for estimate in available)
    fallback: Route = "surface" if surface else "iso-loss"
    if not available:
        return Selection(fallback, "neither route could be fitted")
    shown, held_out, words = split(trajectories)
    cells, late = judged_cells(held_out)
    if not late:
        return Selection(fallback, "nothing to compare: no held-out cell has a minimum of its own")
    quick = replace(options, bootstrap_samples=SAMPLES, seed=0)
    refits = [estimate.refit(shown, quick) for estimate in available] if shown else []
    told = [_Told.of(refit, cells, late) for refit in refits if refit.refusal is None]
    scores = tuple(each.score(cells, late) for each in told)
    if not scores:
        return Selection(fallback, f"{words}, but neither route could be fitted to the rest")
    default = _better(scores, told, cells, fallback)
    if surface and len(scores) < len(available):
        # Winning without a rival proves nothing: the joint surface is the better guess outside the data.
        default = fallback
        words += ", but only one route could be fitted to the rest"
    if surface and len({t.params for t in trajectories}) < FEWEST_SIZES:
        # Held-out tokens do not test another size. The joint surface at least separates N from D.
        default = "surface"
        words += "; with two sizes this does not decide, and the joint surface answers"
    return Selection(default, words, scores, len(late))


def _better(
    scores: Sequence[HeldOutScore],
    told: Sequence[_Told],
    cells: Sequence[HeldOutCell],
    fallback: Route,
) -> Route:
    """The fallback, unless another route is better by more than noise in these cells."""
    regrets = {each.route: each.regrets for each in told}
    usual = regrets.pop(fallback, None)
    if usual is None:
        return min(scores, key=lambda score: score.regret_mean).route
    weights = _weights(cells)
    for route, found in regrets.items():
        gain = usual - found
        mean = float(np.average(gain, weights=weights))
        spread = np.sqrt(np.average((gain - mean) ** 2, weights=weights))
        if mean > SEED_NOISE + SURE * float(spread) / np.sqrt(INDEPENDENT):
            return route
    return fallback


def _weights(cells: Sequence[HeldOutCell]) -> Array:
    """A cell whose own optimum is poorly known judges little."""
    return np.array([1.0 / (USUAL_SCATTER**2 + cell.variance.mean()) for cell in cells])


@dataclass(frozen=True)
class _Told:
    """What a route answers in the cells that it was not shown."""

    route: Route
    regrets: Array
    """(cells,) nats above each cell's own minimum."""
    late: tuple[Array, ...]
    """Per late cell (draws, 2) of ln LR and ln B, the estimate first."""

    @staticmethod
    def of(estimate: Estimate, cells: Sequence[HeldOutCell], late: Sequence[HeldOutCell]) -> _Told:
        """Asked once per cell: late ones are among all."""
        answers = [_answer(estimate, cell) for cell in cells]
        regrets = [c.regret(a[0, 0], a[0, 1]) for c, a in zip(cells, answers, strict=True)]
        by_cell = {id(cell): answer for cell, answer in zip(cells, answers, strict=True)}
        return _Told(estimate.route, np.array(regrets), tuple(by_cell[id(cell)] for cell in late))

    def score(self, cells: Sequence[HeldOutCell], late: Sequence[HeldOutCell]) -> HeldOutScore:
        """Regret in all cells; errors of ln LR and ln B in the late ones, which answers resemble."""
        pairs = list(zip(late, self.late, strict=True))
        squares = np.array([(a[0] - c.vertex) ** 2 for c, a in pairs])
        noise = np.array([a.var(axis=0) + c.variance for c, a in pairs])
        error = np.sqrt(squares.mean(axis=0))
        unexplained = np.sqrt(np.maximum((squares - noise).mean(axis=0), 0.0))
        return HeldOutScore(
            route=self.route,
            regret_mean=float(np.average(self.regrets, weights=_weights(cells))),
            regret_max=float(np.max(self.regrets)),
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
