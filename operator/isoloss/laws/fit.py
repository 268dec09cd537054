"""The chain from runs to laws, top to bottom."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isoloss.laws import model
from isoloss.laws.assemble import Estimates, assemble
from isoloss.laws.bootstrap import DrawSource
from isoloss.laws.data.screening import screen
from isoloss.laws.falling_losses import rising_warnings, stopped_rates, worse_sizes
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.iso_loss.estimate import fit_iso_loss, with_envelope
from isoloss.laws.iso_loss.optima import Frontier
from isoloss.laws.outlier_warnings import outlier_warnings, unlike_sizes
from isoloss.laws.refusals import refuse_mixture, refused_laws
from isoloss.laws.results import SurfaceLaw
from isoloss.laws.rounded_losses import rounding_warnings
from isoloss.laws.surface.estimate import fit_joint_surface
from isoloss.laws.surface.rate_at_batch import fit_rate_at_batch
from isoloss.usual import BEST_RUNS_ERROR, FRONTIER_RATIO_ERROR


def fit_laws(
    runs: Sequence[model.Run],
    options: model.FitOptions = model.DEFAULTS,
    *,
    provisional: bool = False,
) -> Laws:
    """Laws or typed refusals from the runs of a sweep; `provisional` marks those of a partial one.

    Raises InvalidRunError if a run's numbers are impossible (negative losses, tokens out of order), and
    for a name in `options.exclude` that no run has.
    """
    refusal = refuse_mixture([run for run in runs if run.name not in options.exclude])
    if refusal is not None:
        return refused_laws(refusal, runs, options)
    screened = screen(runs, options)
    collected = screened.collected
    if collected.refusals:
        return refused_laws(collected.refusals[0], runs, options, collected.excluded)
    fitted: model.Status = "provisional" if provisional else "fitted"
    trajectories, cells = collected.trajectories, screened.cells
    surface = fit_joint_surface(trajectories, cells, fitted)
    rising = rising_warnings(trajectories, surface)
    warnings = (
        *rising,
        *worse_sizes(trajectories),
        *(() if provisional else stopped_rates(trajectories)),
        *rounding_warnings(runs),
        *collected.warnings,
        *outlier_warnings(runs, screened, surface),
        *unlike_sizes(surface),
    )
    at_batch = fit_rate_at_batch(trajectories, cells, fitted)
    # Last: its crossings of every run would lie in memory while the others fit.
    iso_loss = fit_iso_loss(trajectories, options, fitted)
    surface = _at_the_frontiers_ratio(surface, iso_loss.frontier)
    refusal = iso_loss.estimate.loss_compute.refusal
    if refusal is not None and refusal.reason in model.NO_MINIMUM and surface.refusal is None:
        # The grid answers, and how much compute lies in a checkpoint's past can be asked of its best runs.
        source = DrawSource(options.seed, 13, options.bootstrap_samples)
        iso_loss = with_envelope(iso_loss, trajectories, options, fitted, source, BEST_RUNS_ERROR)
    collected = replace(collected, warnings=warnings)
    estimates = Estimates(iso_loss, surface, at_batch)
    return assemble(runs, options, fitted, collected, estimates)


def _at_the_frontiers_ratio(surface: SurfaceLaw, frontier: Frontier | None) -> SurfaceLaw:
    """With the frontier's tokens per parameter, for questions that name no size."""
    if frontier is None or not frontier.found.any():
        return surface
    ratios = (frontier.log_tokens - frontier.log_params)[:, frontier.found]
    # The median of each draw's finite ratios, of all at once.
    known = np.isfinite(ratios)
    count = known.sum(axis=1)
    row, ordered = np.flatnonzero(count), np.sort(np.where(known, ratios, np.inf), axis=1)
    drawn = 0.5 * (ordered[row, (count[row] - 1) // 2] + ordered[row, count[row] // 2])
    error = np.sqrt(drawn.var() + ratios[0].var() + FRONTIER_RATIO_ERROR**2)
    return replace(
        surface,
        frontier_log_ratio=float(np.median(ratios[0])),
        frontier_log_flops=float(np.mean(frontier.log_flops[0, frontier.found])),
        frontier_ratio_error=float(error),
    )
