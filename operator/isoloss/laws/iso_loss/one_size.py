"""L(C) of a single size, from the lower envelope of its runs: what it reaches, without any law over sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isoloss.laws.bootstrap import DECIDING, DrawSource
from isoloss.laws.curves import LossCurve
from isoloss.laws.data.cells import loss_at
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.loss_compute import fit_loss_compute
from isoloss.laws.model import FitOptions, Status
from isoloss.laws.results import LossComputeLaw

POINTS = 24
SLIGHTEST = 1e-6
"""Of ln L by which a loss must be below the one before to count as lower."""
WARNING = (
    "There is one size: its loss-compute law is that of longer training at this size. Larger models reach lower "
    "losses with the same compute."
)


def loss_compute_of_one_size(
    trajectories: Sequence[Trajectory],
    run_noise: float,
    options: FitOptions,
    fitted: Status,
    source: DrawSource,
) -> tuple[LossComputeLaw, LossCurve | None]:
    """The law and its draws; `run_noise` is that of ln L from run to run."""
    usable = [t for t in trajectories if t.usable]
    low = float(np.median([t.log_tokens[0] for t in usable])) if usable else 0.0
    high = max((float(t.log_tokens[-1]) for t in usable), default=0.0)
    places = _places(usable, low, high)
    best = [
        (d, min(losses))
        for d in places
        if (losses := [loss for t in usable if (loss := loss_at(t, d)) is not None])
    ]
    falling = [b for i, b in enumerate(best) if all(b[1] < a[1] - SLIGHTEST for a in best[:i])]
    log_tokens, log_losses = np.array(falling).reshape(-1, 2).T
    log_flops = log_tokens + (np.log(usable[0].flops_per_token) if usable else 0.0)
    slopes = np.ones(len(falling))
    if len(falling) > 1:
        slopes = np.maximum(-np.gradient(log_losses, log_tokens), 1e-3)
    errors = run_noise * source.normal(len(falling)) / slopes
    law, draws = fit_loss_compute(
        np.exp(log_losses), log_flops + errors, options, fitted, 1 + DECIDING
    )
    return law, None if draws is None else draws.take(slice(1 + DECIDING, None))


def _places(usable: Sequence[Trajectory], low: float, high: float) -> list[float]:
    """ln D at which there may be losses: evenly spaced, and those of runs with few evaluations."""
    counts = {float(np.round(d, 3)): float(d) for t in usable for d in t.log_tokens[:POINTS]}
    few = sorted(counts.values()) if len(counts) <= POINTS else []
    return few or list(np.linspace(low, high, POINTS))
