"""The part of the user's own data that fits are judged on, having not seen it, and how both routes do there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.data.cells import Cell, make_cells
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.estimates import Estimate, Target
from isoloss.laws.model import FitOptions
from isoloss.laws.quadratic import TERMS, Quadratic, fit_quadratic, is_determined, vertex_of
from isoloss.laws.results import HeldOutScore
from isoloss.usual import USUAL_SCATTER

FEWEST_SIZES = 3
"""Sizes needed to hold one out and still see a trend over the others, or to see how far one deviates."""
TOKENS_SHOWN = 0.4
"""With fewer than three sizes, the share of each size's tokens that the held-out fit is shown."""
SAMPLES = 50
"""Bootstrap samples of the fits that are judged; they get the same seed whatever the user's is."""


@dataclass(frozen=True)
class HeldOutCell:
    """A cell with its own parabola, the judge of both routes."""

    log_params: float
    log_tokens: float
    log_flops: float
    vertex: Array
    variance: Array
    """(2,) of the vertex."""
    valley: Quadratic
    lowest: float
    loss_scale: float
    """Nats per unit of the parabola."""

    def regret(self, log_rate: float, log_batch: float) -> float:
        """Nats above the cell's minimum."""
        value = self.valley.at(np.asarray(log_rate), np.asarray(log_batch))
        return float(value - self.lowest) * self.loss_scale


def split(trajectories: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """(shown, held out)."""
    sizes = sorted({t.params for t in trajectories})
    if len(sizes) >= FEWEST_SIZES:
        largest = sizes[-1]
        return (
            [t for t in trajectories if t.params < largest],
            [t for t in trajectories if t.params == largest],
        )
    ends = {n: max(t.end for t in trajectories if t.params == n) for n in sizes}
    limits = {n: end + np.log(TOKENS_SHOWN) for n, end in ends.items()}
    shown = [_cut_before(t, limits[t.params]) for t in trajectories]
    return [t for t in shown if t.usable], list(trajectories)


def _cut_before(t: Trajectory, limit: float) -> Trajectory:
    keep = t.log_tokens <= limit + 1e-9
    block = t.smoother[np.ix_(keep, keep)]
    # Rows of the cut smoother still average, without the evaluations that were cut away.
    sums = block.sum(1, keepdims=True)
    return replace(
        t,
        log_tokens=t.log_tokens[keep],
        log_losses=t.log_losses[keep],
        smooth=t.smooth[keep],
        smoother=block / np.where(np.abs(sums) > 0.1, sums, 1.0),
        residuals=t.residuals[: int(keep.sum())],
        sources=t.sources[keep],
        end=min(t.end, float(limit)),
    )


class JudgedCells(NamedTuple):
    """The cells with a minimum inside."""

    every: list[HeldOutCell]
    late: list[HeldOutCell]
    """All if runs have single evaluations."""


def judged_cells(trajectories: Sequence[Trajectory]) -> JudgedCells:
    """Of all sizes."""
    cells = make_cells(trajectories)
    judged = [_judge(cell, trajectories) for cell in cells]
    every = [j for j in judged if j is not None]
    if len({t.params for t in trajectories}) > 1 or len(cells) > 4:
        last = {
            c.log_params: max(o.log_tokens for o in cells if o.log_params == c.log_params)
            for c in cells
        }
        judged = [
            j
            for c, j in zip(cells, judged, strict=True)
            if c.log_tokens > last[c.log_params] + np.log(TOKENS_SHOWN)
        ]
    return JudgedCells(every, [j for j in judged if j is not None])


def _judge(cell: Cell, trajectories: Sequence[Trajectory]) -> HeldOutCell | None:
    if len(cell.runs) < 7:
        return None
    runs = [trajectories[i] for i in cell.runs]
    x = np.log([t.learning_rate for t in runs])
    y = np.log([t.batch_size for t in runs])
    z = cell.waste
    excess = z - z.min()
    weights = 1.0 / (1.0 + (excess / 0.15) ** 2)
    if not is_determined(x, y):
        return None
    fit = fit_quadratic(x, y, z, weights)
    vertex, lowest, convex = vertex_of(fit.coefficients, fit.centre)
    inside = x.min() <= vertex[0] <= x.max() and y.min() <= vertex[1] <= y.max()
    if not convex or not inside:
        return None
    scale = cell.slope * float(np.exp(cell.log_losses.min()))
    scatter = float((weights * fit.residuals**2).sum()) / max(len(z) - TERMS, 1)
    noise = np.sqrt(scatter / weights) * np.random.default_rng(4).standard_normal((100, len(z)))
    vertices, _, good = vertex_of((z + noise) @ fit.solver.T, fit.centre)
    return HeldOutCell(
        log_params=cell.log_params,
        log_tokens=cell.log_tokens,
        log_flops=cell.log_tokens + float(np.log(runs[0].flops_per_token)),
        vertex=vertex,
        variance=vertices[good].var(axis=0),
        valley=fit,
        lowest=float(lowest),
        loss_scale=scale,
    )


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
