"""The chain from runs to laws, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isoloss.laws.assemble import Estimates, assemble
from isoloss.laws.estimate import IsoLossEstimate, fit_iso_loss
from isoloss.laws.model import Array, FitOptions, Refusal, Route, Run, Status
from isoloss.laws.optima import Frontier
from isoloss.laws.refusals import refuse_mixture, refused_laws
from isoloss.laws.results import Laws, SurfaceLaw
from isoloss.laws.selection import Predictor, select_route
from isoloss.laws.surface import draw_coefficients, fit_surface, make_cells, surface_law
from isoloss.laws.trajectories import Trajectory, collect


def fit_laws(
    runs: Sequence[Run], options: FitOptions = FitOptions(), *, provisional: bool = False
) -> Laws:
    """Laws or typed refusals from the runs of a sweep; `provisional` marks those of a partial one.

    Raises InvalidRunError where a run's numbers can not be (negative losses, tokens out of order).
    """
    refusal = refuse_mixture(runs)
    if refusal is not None:
        return refused_laws(refusal, runs, options)
    collected = collect(runs)
    if collected.refusals:
        return refused_laws(collected.refusals[0], runs, options, collected.excluded)
    fitted: Status = "provisional" if provisional else "fitted"
    trajectories = collected.trajectories
    iso_loss = fit_iso_loss(trajectories, options, fitted)
    surface, surface_draws = fit_joint_surface(trajectories, options, fitted, iso_loss.frontier)
    available = _available(iso_loss, surface)
    quick = replace(options, bootstrap_samples=min(50, options.bootstrap_samples))
    selection = select_route(trajectories, available, lambda t: _predictors(t, quick))
    estimates = Estimates(iso_loss, surface, surface_draws, selection)
    return assemble(runs, options, fitted, collected, estimates)


def fit_joint_surface(
    trajectories: Sequence[Trajectory],
    options: FitOptions,
    fitted: Status,
    frontier: Frontier | None,
) -> tuple[SurfaceLaw, Array | None]:
    """The second estimate and the draws of its optimum's coefficients."""
    cells = make_cells(trajectories)
    fit = fit_surface(trajectories, cells)
    if isinstance(fit, Refusal):
        return SurfaceLaw("refused", refusal=fit), None
    rng = np.random.default_rng([options.seed, 2])
    draws = draw_coefficients(fit, options.bootstrap_samples + 1, rng)
    law, optimum_draws = surface_law(fit, trajectories, cells, draws, fitted)
    if frontier is not None and frontier.found.any():
        used = frontier.found
        ratio = np.median(frontier.log_tokens[0, used] - frontier.log_params[0, used])
        law = replace(law, frontier_log_ratio=float(ratio))
    return law, optimum_draws


def _available(iso_loss: IsoLossEstimate, surface: SurfaceLaw) -> list[Route]:
    routes: list[Route] = ["iso-loss"] if iso_loss.complete else []
    if surface.status != "refused":
        routes.append("surface")
    return routes


def _predictors(trajectories: Sequence[Trajectory], options: FitOptions) -> dict[Route, Predictor]:
    """Both routes fitted to some of the trajectories, as functions of (ln N, ln D, ln C)."""
    if not trajectories:
        return {}
    iso_loss = fit_iso_loss(trajectories, options, "fitted")
    surface, _ = fit_joint_surface(trajectories, options, "fitted", None)
    predictors: dict[Route, Predictor] = {}
    routes = _available(iso_loss, surface)
    curve, rate, batch = iso_loss.loss_compute, iso_loss.learning_rate, iso_loss.batch_size
    if "iso-loss" in routes and curve.status != "refused":

        def along_frontier(_n: float, _d: float, c: float) -> tuple[float, float]:
            loss = curve.loss(c)
            return float(np.log(rate.value(loss, c))), float(np.log(batch.value(loss, c)))

        predictors["iso-loss"] = along_frontier
    if "surface" in routes:

        def on_surface(n: float, d: float, _c: float) -> tuple[float, float]:
            log_rate, log_batch = surface.optimum(n, d)
            return float(log_rate), float(log_batch)

        predictors["surface"] = on_surface
    return predictors
