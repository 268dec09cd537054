"""The chain from runs to laws, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from isoloss.laws.assemble import Estimates, assemble
from isoloss.laws.data.cells import make_cells
from isoloss.laws.data.trajectories import Trajectory, collect
from isoloss.laws.iso_loss.estimate import IsoLossEstimate, fit_iso_loss
from isoloss.laws.iso_loss.optima import Frontier
from isoloss.laws.model import DEFAULTS, Array, FitOptions, Refusal, Route, Run, Status
from isoloss.laws.refusals import refuse_mixture, refused_laws
from isoloss.laws.results import Laws, Quantity, SurfaceLaw, evaluate_form
from isoloss.laws.selection import Predictor, select_route
from isoloss.laws.surface.joint_fit import draw_coefficients, fit_surface, surface_law
from isoloss.laws.surface.size_trends import shift_without, trends_to_leave_out

SMALLEST = 1e-300
"""Keeps a law that is linear in B from a logarithm of nothing."""


def fit_laws(
    runs: Sequence[Run], options: FitOptions = DEFAULTS, *, provisional: bool = False
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
    left_out = surface.same_at_all_sizes
    selection = select_route(trajectories, available, lambda t: _predictors(t, quick, left_out))
    estimates = Estimates(iso_loss, surface, surface_draws, selection)
    return assemble(runs, options, fitted, collected, estimates)


def fit_joint_surface(
    trajectories: Sequence[Trajectory],
    options: FitOptions,
    fitted: Status,
    frontier: Frontier | None,
    left_out: Sequence[Quantity] | None = None,
) -> tuple[SurfaceLaw, Array | None]:
    """The second estimate and the draws of its optimum's coefficients.

    `left_out` names trends over sizes to do without; None: the trajectories themselves decide.
    """
    cells = make_cells(trajectories)
    fit = fit_surface(trajectories, cells)
    if isinstance(fit, Refusal):
        return SurfaceLaw("refused", refusal=fit), None
    rng = np.random.default_rng([options.seed, 2])
    draws = draw_coefficients(fit, options.bootstrap_samples + 1, rng)
    if left_out is None:
        left_out = trends_to_leave_out(trajectories, fit)
    shift = shift_without(fit, left_out)
    law, optimum_draws = surface_law(fit, trajectories, cells, draws, shift, fitted)
    law = replace(law, same_at_all_sizes=tuple(left_out))
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


def _predictors(
    trajectories: Sequence[Trajectory], options: FitOptions, left_out: Sequence[Quantity]
) -> dict[Route, Predictor]:
    """Both routes fitted to some of the trajectories, as functions of (ln N, ln D, ln C)."""
    if not trajectories:
        return {}
    iso_loss = fit_iso_loss(trajectories, options, "fitted")
    surface, surface_draws = fit_joint_surface(trajectories, options, "fitted", None, left_out)
    predictors: dict[Route, Predictor] = {}
    if iso_loss.complete and iso_loss.curve_draws is not None:
        predictors["iso-loss"] = partial(_along_frontier, iso_loss)
    if surface_draws is not None:
        predictors["surface"] = partial(_on_surface, surface, surface_draws)
    return predictors


def _along_frontier(estimate: IsoLossEstimate, _n: float, _d: float, c: float) -> Array:
    curve, rates, batches = estimate.curve_draws, estimate.rate_draws, estimate.batch_draws
    assert curve is not None
    assert rates is not None
    assert batches is not None
    losses = curve[:, 0] + np.exp(curve[:, 1] - curve[:, 2] * c)
    rate, batch = estimate.learning_rate, estimate.batch_size
    values = [
        evaluate_form(rate.quantity, rate.form, rates[:, 0], rates[:, 1], losses, c),
        evaluate_form(batch.quantity, batch.form, batches[:, 0], batches[:, 1], losses, c),
    ]
    return np.log(np.maximum(np.stack(values, axis=1), SMALLEST))


def _on_surface(law: SurfaceLaw, draws: Array, n: float, d: float, _c: float) -> Array:
    row = np.array([1.0, n - law.log_params_centre, d - law.log_tokens_centre])
    return np.stack([draws[:, :3] @ row, draws[:, 3:] @ row], axis=1)
