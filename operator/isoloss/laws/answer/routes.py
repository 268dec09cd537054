"""What each of the two routes answers at a total compute, as draws and as intervals."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.form_error import bend_shown, form_error, unseen_form
from isoloss.laws.answer.prediction import Point, PredictionQuery
from isoloss.laws.arrays import Array
from isoloss.laws.bootstrap import interval
from isoloss.laws.curves import LossCurve, Number
from isoloss.laws.estimates import Estimate, OptimumDraws, Target, count_draws, with_draws
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.iso_loss.estimate import IsoLossEstimate
from isoloss.laws.model import Interval, Route
from isoloss.laws.quantiles import student_quantiles
from isoloss.laws.surface.estimate import JointSurfaceEstimate
from isoloss.usual import ISO_LOSS_FREEDOM

ERROR_LEVELS = 51
"""Quantiles that stand for the distribution of a law's own error."""


def flops_per_token(laws: Laws, query: PredictionQuery) -> float:
    """Training FLOPs per token of the target: as given, or the runs' FLOPs per parameter times its parameters."""
    if query.flops_per_token is not None:
        return query.flops_per_token
    assert query.params is not None
    return laws.surface.flops_per_token_per_param * query.params


def budget_flops(laws: Laws, query: PredictionQuery) -> float:
    """C_cpt."""
    if query.cpt_flops is not None:
        return query.cpt_flops
    return (query.cpt_tokens or 0.0) * flops_per_token(laws, query)


def draw_count(laws: Laws, query: PredictionQuery) -> int:
    """How many draws every part of the laws has that the answer needs."""
    draws = laws.draws
    if query.batch_size is not None:
        return count_draws(draws.loss_compute, draws.surface, draws.rate_at_batch)
    return count_draws(draws.learning_rate, draws.batch_size, draws.loss_compute, draws.surface)


def exponential(draws: Array, level: float) -> Interval:
    """The interval of exp(draws), the estimate first among them."""
    found = interval(float(draws[0]), draws[1:], level)
    return Interval(*(float(np.exp(min(v, 700.0))) for v in (found.value, found.low, found.high)))


def loss_curve(laws: Laws, count: int) -> LossCurve | None:
    """L(C) and `count` of its draws, the estimate first; None if it was refused."""
    curve = laws.loss_compute.curve
    return None if curve is None else with_draws(curve, laws.draws.loss_compute, count)


def target_loss(laws: Laws, total: Array) -> Interval | None:
    """L at ln C (draws), nats per token; None if the loss-compute law was refused."""
    curve = loss_curve(laws, len(total) - 1)
    if curve is None:
        return None
    losses = curve.loss(total)
    return interval(float(losses[0]), losses[1:], laws.options.interval)


def estimates_of(laws: Laws) -> tuple[Estimate, ...]:
    """Both routes, as they were fitted."""
    draws = laws.draws
    return (
        IsoLossEstimate(
            laws.learning_rate,
            laws.batch_size,
            laws.loss_compute,
            draws.learning_rate,
            draws.batch_size,
            draws.loss_compute,
        ),
        JointSurfaceEstimate(laws.surface, draws.surface),
    )


def target_of(laws: Laws, query: PredictionQuery, total: Array) -> Target:
    """Where the optimum is asked for, at ln C (draws)."""
    if query.params is None:
        return Target(total)
    log_params = float(np.log(query.params))
    return Target(total, log_params, total - np.log(flops_per_token(laws, query)))


def route_answers(laws: Laws, query: PredictionQuery, total: Array) -> dict[Route, Point]:
    """Every estimate that can answer at ln C (draws)."""
    target = target_of(laws, query, total)
    found = {estimate.route: estimate.answer(target) for estimate in estimates_of(laws)}
    return {
        route: _point(laws, route, target, answer, total)
        for route, answer in found.items()
        if answer is not None
    }


def _widened(laws: Laws, route: Route, target: Target, answer: OptimumDraws) -> list[Array]:
    """The draws with the law's own error added: how far the target's optimum deviates from any law."""
    optimum = (answer.log_rate, answer.log_batch)
    if route == "surface" and laws.surface.target_covariance is not None:
        unseen = np.sqrt(np.diag(unseen_form(laws.surface, target)))
        shown = bend_shown(laws.surface, target)
        return [
            deviating(draws, float(error), answer.deviation_scale, float(bend))
            for draws, error, bend in zip(optimum, unseen, shown, strict=True)
        ]
    errors = form_error(laws, route, target)
    student = student_quantiles(ISO_LOSS_FREEDOM + 1.0, _levels(ERROR_LEVELS))
    return [
        _with_errors(draws, error * student) for draws, error in zip(optimum, errors, strict=True)
    ]


def deviating(draws: Array, error: float, scales: Number, shown: float) -> Array:
    """The draws with the target's deviation from their law, of a standard deviation times the draw's scale, and a `shown` one.

    A law is fitted to optima that deviate as the target's does. Where they deviate more than is usual both err more: that is
    less than two errors come to that know nothing of each other. What runs show of a bend does not depend on that scale.
    """
    normal = np.array([NormalDist().inv_cdf(level) for level in _levels(ERROR_LEVELS)])
    every = np.hypot(error * np.reshape(scales, (-1, 1)), shown)
    return _with_errors(draws, every * normal)


def _with_errors(draws: Array, errors: Array) -> Array:
    """The estimate, and every other draw with each of its errors, (levels,) or (draws, levels): they add no luck of their own."""
    everything = draws[:, None] + errors
    return np.concatenate([draws[:1], everything[1:].ravel()])


def _levels(count: int) -> Array:
    """Evenly spaced probabilities."""
    return (np.arange(count) + 0.5) / count


def _point(laws: Laws, route: Route, target: Target, found: OptimumDraws, total: Array) -> Point:
    level = laws.options.interval
    answer = _widened(laws, route, target, found)
    loss = target_loss(laws, total)
    return Point(
        learning_rate=exponential(answer[0], level),
        batch_size=exponential(answer[1], level),
        total_flops=float(np.exp(total[0])),
        target_loss=None if loss is None else loss.value,
    )
