"""L(C) from the lower envelope of all runs: what they reached, if no law says what the best ones would have.

So it is for a single size, which has no laws over sizes; for a single batch size, which has none of a best one; and where
single loss levels have no optimum inside the grid although all runs together, the joint surface, have one.
"""

from collections.abc import Sequence

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array
from isoloss.laws.bootstrap import DECIDING, DrawSource
from isoloss.laws.curves import LossCurve
from isoloss.laws.data.cells import losses_at
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.levels import LEVELS
from isoloss.laws.iso_loss.loss_compute import fit_loss_compute
from isoloss.laws.model import FitOptions, Status
from isoloss.laws.results import LossComputeLaw

ONE_SIZE = (
    "There is one size: its loss-compute law is that of longer training at this size. Larger models reach lower "
    "losses with the same compute."
)
ONE_BATCH_SIZE = (
    "There is one batch size: the loss-compute law is that of the best runs at it. Better batch sizes may reach lower losses with "
    "the same compute."
)
BEST_RUNS = (
    "Single loss levels have no optimum inside the grid: the loss-compute law is that of the best runs, which need about a tenth "
    "more compute for a loss than the best settings would. Its intervals include that."
)


def loss_compute_of_envelope(
    trajectories: Sequence[Trajectory],
    run_noise: float,
    options: FitOptions,
    fitted: Status,
    source: DrawSource,
    error: float = 0.0,
) -> tuple[LossComputeLaw, LossCurve | None]:
    """The law and its draws; `run_noise` is that of ln L from run to run, `error` one of ln C that all losses share."""
    usable = [t for t in trajectories if t.usable]
    low = float(np.median([_log_flops(t)[0] for t in usable])) if usable else 0.0
    high = max((float(_log_flops(t)[-1]) for t in usable), default=0.0)
    places = np.array(_places(usable, low, high))
    losses = np.array([_losses_at(t, places) for t in usable]).reshape(-1, len(places))
    best = [
        (float(c), float(own[np.isfinite(own)].min()))
        for c, own in zip(places, losses.T, strict=True)
        if np.isfinite(own).any()
    ]
    falling = [b for i, b in enumerate(best) if all(b[1] < a[1] - ROUNDING for a in best[:i])]
    log_flops, log_losses = np.array(falling).reshape(-1, 2).T
    slopes = np.ones(len(falling))
    if len(falling) > 1:
        slopes = np.maximum(-np.gradient(log_losses, log_flops), 1e-3)
    errors = run_noise * source.normal(len(falling)) / slopes
    if error:
        errors = errors + error * source.normal(1)
    law, draws = fit_loss_compute(
        np.exp(log_losses), log_flops + errors, options, fitted, 1 + DECIDING
    )
    return law, None if draws is None else draws.take(slice(1 + DECIDING, None))


def _log_flops(trajectory: Trajectory) -> Array:
    """ln C at its evaluations."""
    return np.asarray(trajectory.log_tokens + np.log(trajectory.flops_per_token), dtype=float)


def _losses_at(trajectory: Trajectory, log_flops: Array) -> Array:
    return losses_at(trajectory, log_flops - float(np.log(trajectory.flops_per_token)))


def _places(usable: Sequence[Trajectory], low: float, high: float) -> list[float]:
    """ln C at which there may be losses: evenly spaced, and those of runs with few evaluations."""
    counts = {float(np.round(c, 3)): float(c) for t in usable for c in _log_flops(t)[:LEVELS]}
    few = sorted(counts.values()) if len(counts) <= LEVELS else []
    return few or list(np.linspace(low, high, LEVELS))
