"""The paper's route on a set of trajectories: levels, vertices, the frontier, f, g and L(C)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isoloss.laws.bootstrap import estimate_noise
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.hyperparameter_laws import fit_hyperparameter_law
from isoloss.laws.iso_loss.levels import choose_levels, read_size
from isoloss.laws.iso_loss.loss_compute import fit_loss_compute
from isoloss.laws.iso_loss.optima import (
    Frontier,
    SizeOptima,
    find_optima,
    fit_parabolas,
    least_compute,
)
from isoloss.laws.model import Array, FitOptions, Refusal, RefusalReason, Status
from isoloss.laws.results import HyperparameterLaw, LossComputeLaw

LEVELS = 24


@dataclass(frozen=True)
class IsoLossEstimate:
    """The paper's route on a set of trajectories."""

    levels: Array
    """ln L, descending."""
    sizes: tuple[SizeOptima, ...]
    frontier: Frontier | None
    learning_rate: HyperparameterLaw
    batch_size: HyperparameterLaw
    loss_compute: LossComputeLaw
    rate_draws: Array | None
    batch_draws: Array | None
    curve_draws: Array | None

    @property
    def complete(self) -> bool:
        """Whether both hyperparameters have a law."""
        return self.rate_draws is not None and self.batch_draws is not None


def fit_iso_loss(
    trajectories: Sequence[Trajectory], options: FitOptions, fitted: Status
) -> IsoLossEstimate:
    """Levels, vertices, the frontier of least compute, f, g and L(C)."""
    rng = np.random.default_rng([options.seed, 1])
    by_size = {
        params: tuple(t for t in trajectories if t.params == params)
        for params in sorted({t.params for t in trajectories})
    }
    levels = choose_levels(by_size, LEVELS)
    if len(levels) == 0:
        return _refused_estimate(_too_few_evaluations(trajectories), options)
    sizes = [read_size(params, group, levels) for params, group in by_size.items()]
    fits = [fit_parabolas(size) for size in sizes]
    found = [
        (s, level, p)
        for s, row in zip(sizes, fits, strict=True)
        for level, p in enumerate(row)
        if p is not None
    ]
    noise = estimate_noise(trajectories, found)
    draws = options.bootstrap_samples + 1
    optima = tuple(
        find_optima(size, parabolas, noise, draws, rng)
        for size, parabolas in zip(sizes, fits, strict=True)
    )
    if len(sizes) < 2:
        refused = _refused_estimate(_one_size(sizes[0].params), options)
        return replace(refused, levels=levels, sizes=optima)
    frontier = least_compute(optima, levels, rng)
    return _laws_of(optima, frontier, options, fitted)


def _laws_of(
    sizes: tuple[SizeOptima, ...], frontier: Frontier, options: FitOptions, fitted: Status
) -> IsoLossEstimate:
    used = frontier.found
    if used.sum() < 4:
        refusal = _main_reason(frontier)
        refused = _refused_estimate(refusal, options)
        return replace(refused, levels=frontier.log_loss, sizes=sizes, frontier=frontier)
    rows = np.isfinite(frontier.log_flops[:, used]).all(axis=1)
    losses = np.exp(frontier.log_loss[used])
    log_flops = frontier.log_flops[np.ix_(rows, used)]
    rate, rate_draws = fit_hyperparameter_law(
        "learning_rate", losses, log_flops, frontier.log_rate[np.ix_(rows, used)], options, fitted
    )
    batch, batch_draws = fit_hyperparameter_law(
        "batch_size", losses, log_flops, frontier.log_batch[np.ix_(rows, used)], options, fitted
    )
    curve, curve_draws = fit_loss_compute(losses, log_flops, options, fitted)
    return IsoLossEstimate(
        levels=frontier.log_loss,
        sizes=sizes,
        frontier=frontier,
        learning_rate=rate,
        batch_size=batch,
        loss_compute=curve,
        rate_draws=rate_draws,
        batch_draws=batch_draws,
        curve_draws=curve_draws,
    )


def _main_reason(frontier: Frontier) -> Refusal:
    """The reason that took most levels away, said by the lowest loss it took.

    Levels that too few runs reach lie at the ends of every sweep: they are to blame only alone.
    """
    reasons = [r for r in frontier.refusals if r is not None]
    telling = [r for r in reasons if r.reason is not RefusalReason.NO_COMMON_LOSS_RANGE] or reasons
    counts = Counter(r.reason for r in telling)
    most = max(counts, key=lambda reason: counts[reason])
    return next(r for r in reversed(telling) if r.reason is most)


def _refused_estimate(refusal: Refusal, options: FitOptions) -> IsoLossEstimate:
    return IsoLossEstimate(
        np.zeros(0),
        (),
        None,
        HyperparameterLaw("learning_rate", "refused", options.form, refusal=refusal),
        HyperparameterLaw("batch_size", "refused", options.form, refusal=refusal),
        LossComputeLaw("refused", refusal=refusal),
        None,
        None,
        None,
    )


def _too_few_evaluations(trajectories: Sequence[Trajectory]) -> Refusal:
    most = max((len(t.log_tokens) for t in trajectories), default=0)
    runs = sum(t.usable for t in trajectories)
    return Refusal(
        RefusalReason.TOO_FEW_EVALUATIONS if runs >= 3 else RefusalReason.TOO_FEW_RUNS,
        f"{runs} runs have usable evaluations, {most} at most, and share no range of losses.",
        {"runs": runs, "evaluations": most},
    )


def _one_size(params: float) -> Refusal:
    return Refusal(
        RefusalReason.TOO_FEW_SIZES,
        f"There is one model size ({params:.3g} parameters); laws across compute need two.",
        {"sizes": 1},
    )
