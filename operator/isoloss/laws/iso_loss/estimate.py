"""The paper's route on a set of trajectories: levels, vertices, the frontier, f, g and L(C)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isoloss.formatting import counted
from isoloss.laws.arrays import Array
from isoloss.laws.bootstrap import DECIDE, DrawSource
from isoloss.laws.curves import HyperparameterCurve, LossCurve
from isoloss.laws.data.trajectories import Trajectory, has_few_runs
from isoloss.laws.iso_loss.envelope import loss_compute_of_envelope
from isoloss.laws.iso_loss.hyperparameter_laws import fit_hyperparameter_law
from isoloss.laws.iso_loss.levels import FEWEST_LEVELS, choose_levels, read_size, too_few_levels
from isoloss.laws.iso_loss.loss_compute import fit_loss_compute
from isoloss.laws.iso_loss.noise import estimate_noise
from isoloss.laws.iso_loss.optima import (
    Frontier,
    SizeOptima,
    find_optima,
    fit_parabolas,
    least_compute,
)
from isoloss.laws.model import FitOptions, Refusal, RefusalReason, Status
from isoloss.laws.refusals import refuse_alike_sizes
from isoloss.laws.results import HyperparameterLaw, LossComputeLaw
from isoloss.usual import FEWEST_RUNS


@dataclass(frozen=True)
class IsoLossEstimate:
    """The three laws of the paper's route and their draws."""

    learning_rate: HyperparameterLaw
    batch_size: HyperparameterLaw
    loss_compute: LossComputeLaw
    rate_draws: HyperparameterCurve | None = None
    batch_draws: HyperparameterCurve | None = None
    curve_draws: LossCurve | None = None


@dataclass(frozen=True)
class IsoLossFit:
    """The laws, and the optima that they rest on."""

    levels: Array
    """ln L, descending."""
    sizes: tuple[SizeOptima, ...]
    frontier: Frontier | None
    estimate: IsoLossEstimate
    run_noise: float = 0.0
    """Standard deviation of ln L from run to run."""


def fit_iso_loss(
    trajectories: Sequence[Trajectory], options: FitOptions, fitted: Status
) -> IsoLossFit:
    """Levels, vertices, the frontier of least compute, f, g and L(C)."""
    source = DrawSource(options.seed, 1, options.bootstrap_samples)
    by_size = {
        params: tuple(t for t in trajectories if t.params == params)
        for params in sorted({t.params for t in trajectories})
    }
    levels = choose_levels(by_size)
    if len(levels) == 0:
        return IsoLossFit(levels, (), None, _refused(_too_few_evaluations(trajectories), options))
    sizes = [read_size(params, group, levels) for params, group in by_size.items()]
    fits = [fit_parabolas(size) for size in sizes]
    found = [
        (s, level, p)
        for s, row in zip(sizes, fits, strict=True)
        for level, p in enumerate(row)
        if p is not None
    ]
    noise = estimate_noise(trajectories, found)
    optima = tuple(
        find_optima(size, parabolas, noise, source)
        for size, parabolas in zip(sizes, fits, strict=True)
    )
    one = _one_size(sizes[0].params) if len(sizes) < 2 else refuse_alike_sizes(by_size)
    frontier = None if one is not None else least_compute(optima, levels, source)
    if one is not None:
        estimate = _refused(one, options)
    else:
        assert frontier is not None
        estimate = _laws_of(frontier, options, fitted)
    found_so_far = IsoLossFit(levels, optima, frontier, estimate, noise.run)
    if frontier is None or len({t.batch_size for t in trajectories}) == 1:
        return with_envelope(found_so_far, trajectories, options, fitted, source)
    return found_so_far


def with_envelope(
    fit: IsoLossFit,
    trajectories: Sequence[Trajectory],
    options: FitOptions,
    fitted: Status,
    source: DrawSource,
    error: float = 0.0,
) -> IsoLossFit:
    """With L(C) from what the best runs reached, if they give one; `error` as there."""
    curve, draws = loss_compute_of_envelope(
        trajectories, fit.run_noise, options, fitted, source, error
    )
    if curve.refusal is not None:
        return fit
    return replace(fit, estimate=replace(fit.estimate, loss_compute=curve, curve_draws=draws))


def _laws_of(frontier: Frontier, options: FitOptions, fitted: Status) -> IsoLossEstimate:
    used = frontier.found
    if used.sum() < FEWEST_LEVELS:
        return _refused(_main_reason(frontier), options)
    rows = np.asarray(np.isfinite(frontier.log_flops[:, used]).all(axis=1))
    losses = np.exp(frontier.log_loss[used])
    log_flops, log_rate, log_batch = (
        values[np.ix_(rows, used)]
        for values in (frontier.log_flops, frontier.log_rate, frontier.log_batch)
    )
    deciding = int(rows[DECIDE].sum())
    rate, rate_draws = fit_hyperparameter_law(
        "learning_rate", losses, log_flops, log_rate, options, fitted, deciding
    )
    batch, batch_draws = fit_hyperparameter_law(
        "batch_size", losses, log_flops, log_batch, options, fitted, deciding
    )
    curve, curve_draws = fit_loss_compute(losses, log_flops, options, fitted, deciding)
    kept = slice(deciding, None)
    return IsoLossEstimate(
        rate,
        batch,
        curve,
        rate_draws and rate_draws.take(kept),
        batch_draws and batch_draws.take(kept),
        curve_draws and curve_draws.take(kept),
    )


def _main_reason(frontier: Frontier) -> Refusal:
    """The reason that removed most levels, as given at the lowest loss that it removed.

    Every sweep has levels at its ends that too few runs reach: they count only if nothing else does.
    """
    reasons = [r for r in frontier.refusals if r is not None]
    if not reasons:
        return too_few_levels(len(frontier.refusals))
    telling = [r for r in reasons if r.reason is not RefusalReason.NO_COMMON_LOSS_RANGE] or reasons
    counts = Counter(r.reason for r in telling)
    most = max(counts, key=lambda reason: counts[reason])
    return next(r for r in reversed(telling) if r.reason is most)


def _refused(refusal: Refusal, options: FitOptions) -> IsoLossEstimate:
    return IsoLossEstimate(
        HyperparameterLaw("learning_rate", "refused", options.form, refusal=refusal),
        HyperparameterLaw("batch_size", "refused", options.form, refusal=refusal),
        LossComputeLaw("refused", refusal=refusal),
    )


def _too_few_evaluations(trajectories: Sequence[Trajectory]) -> Refusal:
    most = max((len(t.log_tokens) for t in trajectories), default=0)
    runs, few = sum(t.usable for t in trajectories), has_few_runs(trajectories)
    return Refusal(
        RefusalReason.TOO_FEW_EVALUATIONS
        if runs >= FEWEST_RUNS and few is None
        else RefusalReason.TOO_FEW_RUNS,
        f"Runs with usable evaluations: {runs} (at most {counted(most, 'evaluation')} per run); they share no range of losses. "
        f"{few or 'Evaluate more often, or train longer.'}",
        {"runs": runs, "evaluations": most},
    )


def _one_size(params: float) -> Refusal:
    return Refusal(
        RefusalReason.TOO_FEW_SIZES,
        f"There is only one model size ({params:.3g} parameters). Laws of learning rate and batch size need at "
        "least two: train another size.",
        {"sizes": 1},
    )
