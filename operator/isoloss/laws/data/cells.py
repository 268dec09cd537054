"""Cuts trajectories into cells (all runs of one size at one token count), with losses expressed in tokens.

A loss above the size's best at D tokens counts as the share of D that was wasted: the best run would
have needed fewer tokens for it. In that unit a wrong learning rate costs about the same at every N
and D. In nats it does not, because the slope over tokens falls along every trajectory.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array, Indices
from isoloss.laws.curve_fitting import fit_curves
from isoloss.laws.curves import LossCurve
from isoloss.laws.data.copies import SAME_TOKENS
from isoloss.laws.data.smoothing import DENSE
from isoloss.laws.data.trajectories import Trajectory
from isoloss.usual import FEWEST_RUNS, USUAL_SLOPE

HIGHEST_FLOOR = 0.95
"""Floor of a best curve at most, as a share of its lowest loss: three noisy cells must not bend it more."""
LATE = 0.25
"""Share of a size's tokens from which cells count as late: answers are for the end of runs, and the best batch
size grows fourfold on the way there."""
LATER = 0.5
"""Share of tokens, or of evaluations, after which runs count as nearly ended."""


@dataclass(frozen=True)
class Cell:
    """All runs of one size at one token count."""

    log_params: float
    log_tokens: float
    runs: Indices
    """Indices of the trajectories."""
    log_losses: Array
    slope: float
    """-dlnL/dlnD of the size's best curve at the cell: turns errors of ln L into ln D."""
    waste: Array
    """ln D wasted against the size's best curve, per run."""


def make_cells(trajectories: Sequence[Trajectory], earliest: float = 0.0) -> list[Cell]:
    """Cut the trajectories at common token counts, where at least FEWEST_RUNS runs of a size have a loss.

    Trajectories with a loss everywhere are cut from the share `earliest` of the tokens on that so many runs of their size came to.
    """
    cells: list[Cell] = []
    for params in sorted({t.params for t in trajectories}):
        chosen = [(i, t) for i, t in enumerate(trajectories) if t.params == params and t.usable]
        if chosen:
            cells += _cells_of_size(float(np.log(params)), chosen, earliest)
    return cells


def late_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Those from LATE of their size's tokens on."""
    last: dict[float, float] = {}
    for cell in cells:
        last[cell.log_params] = max(cell.log_tokens, last.get(cell.log_params, -np.inf))
    return [c for c in cells if c.log_tokens >= last[c.log_params] + np.log(LATE) - SAME_TOKENS]


def _cells_of_size(
    log_params: float, chosen: list[tuple[int, Trajectory]], earliest: float
) -> list[Cell]:
    ends = sorted((float(t.log_tokens[-1]) for _, t in chosen), reverse=True)
    first = -np.inf if earliest <= 0.0 else ends[:FEWEST_RUNS][-1] + float(np.log(earliest))
    tokens = _common_tokens([t for _, t in chosen], first)
    every = np.array([i for i, _ in chosen], dtype=np.intp)
    losses = np.array([losses_at(t, np.array(tokens)) for _, t in chosen])
    cuts = [
        (d, every[there], own[there])
        for d, own, there in zip(tokens, losses.T, np.isfinite(losses.T), strict=True)
        if there.sum() >= FEWEST_RUNS
    ]
    if not cuts:
        return []
    best = np.array([own.min() for _, _, own in cuts])
    curve = best_curve(np.array([d for d, _, _ in cuts]), best)
    return [_cell(log_params, d, runs, own, curve) for d, runs, own in cuts]


def _cell(
    log_params: float, log_tokens: float, runs: Indices, losses: Array, curve: LossCurve
) -> Cell:
    waste = log_tokens - tokens_to(curve, losses)
    steepness = float(curve.steepness(log_tokens))
    return Cell(log_params, log_tokens, runs, losses, steepness, waste)


def tokens_to(curve: LossCurve, log_losses: Array) -> Array:
    """ln D at which a size's best run has these losses (ln nats), finite at the curve's floor as well."""
    return curve.log_x(np.exp(log_losses), ROUNDING)


def best_curve(log_tokens: Array, log_losses: Array) -> LossCurve:
    """Loss over tokens of a size's best runs; two points leave no floor, one leaves only a usual slope."""
    losses = np.exp(log_losses)
    falling = np.polyfit(log_tokens, log_losses, 1)[0] < 0 if len(losses) > 1 else False
    if not falling:
        log_gain = float(log_losses[0] + USUAL_SLOPE * log_tokens[0])
        return LossCurve(0.0, log_gain, USUAL_SLOPE)
    fixed = None if len(losses) > 2 else 0.0
    return fit_curves(
        losses, log_tokens[None, :], np.ones(len(losses)), fixed, HIGHEST_FLOOR
    ).first()


def _common_tokens(trajectories: list[Trajectory], first: float) -> list[float]:
    """ln D of one size's cells.

    A dense run has a loss anywhere between its ends, a sparse one only where it was evaluated. Without
    dense runs there is a cell at every count; without sparse ones DENSE are evenly spaced. With both, cells
    keep to the counts of the sparse runs, where most runs have a loss, and fill the gaps evenly. Even cells begin at `first`,
    ln D, or where most runs do.
    """
    sparse = [t for t in trajectories if len(t.log_tokens) < DENSE]
    if len(sparse) == len(trajectories):
        return _distinct(sparse)
    low = max(float(np.median([t.log_tokens[0] for t in trajectories])), first)
    high = max(t.log_tokens[-1] for t in trajectories)
    even = list(np.linspace(low, high, DENSE))
    if not sparse:
        return even
    half_step = 0.5 * float(high - low) / (DENSE - 1)
    shared = _where_most_have_a_loss(trajectories, _distinct(sparse))
    between = [d for d in even if all(abs(d - other) > half_step for other in shared)]
    return sorted([*shared, *_where_most_have_a_loss(trajectories, between)])


def _distinct(trajectories: list[Trajectory]) -> list[float]:
    """The token counts at which these runs were evaluated, ln D, those that are one count merged."""
    every = np.sort(np.concatenate([t.log_tokens for t in trajectories]))
    starts = [0, *(np.flatnonzero(np.diff(every) > SAME_TOKENS) + 1), len(every)]
    return [float(np.median(every[a:b])) for a, b in itertools.pairwise(starts)]


def _where_most_have_a_loss(
    trajectories: list[Trajectory], log_tokens: list[float]
) -> list[float]:
    """Those where most of the runs that were trained this far have a loss."""
    at = np.array(log_tokens)
    ends = np.array([t.log_tokens[-1] for t in trajectories])
    there = ends[:, None] >= at - SAME_TOKENS
    losses = np.array([losses_at(t, at) for t in trajectories])
    most = 2 * (there & np.isfinite(losses)).sum(axis=0) > there.sum(axis=0)
    return [d for d, is_kept in zip(log_tokens, most, strict=True) if is_kept]


def losses_at(t: Trajectory, log_tokens: Array) -> Array:
    """ln L of a trajectory at each ln D, NaN where it has none."""
    if len(t.log_tokens) >= DENSE:
        there = (log_tokens >= t.log_tokens[0] - SAME_TOKENS) & (
            log_tokens <= t.log_tokens[-1] + SAME_TOKENS
        )
        return np.where(there, np.interp(log_tokens, t.log_tokens, t.smooth), np.nan)
    apart = np.abs(t.log_tokens[None, :] - log_tokens[:, None])
    near = np.argmin(apart, axis=1)
    return np.where(apart.min(axis=1) < SAME_TOKENS, t.log_losses[near], np.nan)
