"""What each of the two estimates answers at a total compute, as draws and as intervals."""

from __future__ import annotations

import numpy as np

from isoloss.laws.answer.prediction import Point, PredictionQuery
from isoloss.laws.bootstrap import interval
from isoloss.laws.model import Array, Interval, Route
from isoloss.laws.results import Laws, evaluate_form
from isoloss.laws.surface.form_error import USUAL, scatter_freedom

FORM_ERRORS = (0.006, 0.012)
"""Of ln LR and ln B: no law is exact, and B moves farther along a sweep than LR."""
UNTESTED = 0.1
"""Of ln x, where no data could be held out to see how a law errs."""
NEAREST, FARTHEST = 0.25, 3.0
"""Bounds of the share of the held-out error that an answer carries, by its distance."""


def flops_per_token(laws: Laws, query: PredictionQuery) -> float:
    """Of the target: as given, or the runs' FLOPs per parameter times its parameters."""
    if query.flops_per_token is not None:
        return query.flops_per_token
    assert query.params is not None
    return laws.surface.flops_per_token_per_param * query.params


def draw_count(laws: Laws) -> int:
    """How many draws every part of the laws has."""
    draws = laws.draws
    groups = (draws.learning_rate, draws.batch_size, draws.loss_compute, draws.surface)
    counts = [len(group) for group in groups if group is not None]
    return min(counts, default=0)


def curve_estimate(laws: Laws) -> Array:
    """(3,) L0, ln alpha, gamma; NaN where refused."""
    curve = laws.loss_compute
    return np.array([curve.irreducible_loss, curve.log_alpha, curve.gamma], dtype=float)


def with_estimate(draws: Array | None, estimate: Array, count: int) -> Array:
    """The estimate as row 0, then `count` draws."""
    if draws is None:
        return np.tile(estimate, (count + 1, 1))
    return np.concatenate([estimate[None], draws[:count]])


def exponential(draws: Array, level: float) -> Interval:
    """The interval of exp(draws), the estimate first among them."""
    found = interval(float(draws[0]), draws[1:], level)
    return Interval(*(float(np.exp(min(v, 700.0))) for v in (found.value, found.low, found.high)))


def target_loss(laws: Laws, total: Array) -> Interval | None:
    """L at ln C (draws), nats per token; None where the loss-compute law was refused."""
    if laws.loss_compute.status == "refused":
        return None
    curve = with_estimate(laws.draws.loss_compute, curve_estimate(laws), len(total) - 1)
    losses = curve[:, 0] + np.exp(curve[:, 1] - curve[:, 2] * total)
    return interval(float(losses[0]), losses[1:], laws.options.interval)


def route_answers(laws: Laws, query: PredictionQuery, total: Array) -> dict[Route, Point]:
    """Every estimate that can answer at ln C (draws)."""
    routes: dict[Route, Point] = {}
    along = _iso_loss_answer(laws, total)
    if along is not None:
        routes["iso-loss"] = _point(laws, "iso-loss", along, total)
    on = _surface_answer(laws, query, total)
    if on is not None:
        routes["surface"] = _point(laws, "surface", on, total)
    return routes


def _widened(laws: Laws, route: Route, answer: tuple[Array, Array], total: Array) -> list[Array]:
    """The draws with the law's own error added: what it missed on held-out data beyond noise.

    That error is taken to grow with the distance in ln C from the data.
    """
    score = laws.selection.score_of(route)
    unexplained = (UNTESTED, UNTESTED)
    if score is not None:
        unexplained = (score.unexplained_learning_rate_error, score.unexplained_batch_size_error)
    beyond = total[0] - np.log(laws.data.largest_flops or np.exp(total[0]))
    share = float(np.clip(beyond / laws.selection.log_distance, NEAREST, FARTHEST))
    rng = np.random.default_rng([laws.options.seed, 5])
    scatter = _scatter(laws)
    freedom = scatter_freedom(len(laws.data.sizes))
    widened = []
    for k, (draws, error) in enumerate(zip(answer, unexplained, strict=True)):
        form = np.hypot(FORM_ERRORS[k], share * error)
        noise = form * rng.standard_normal(len(draws))
        noise += scatter[k] * rng.standard_t(freedom, len(draws))
        noise[0] = 0.0
        widened.append(draws + noise)
    return widened


def _scatter(laws: Laws) -> Array:
    """(2,) of ln LR and ln B: how far the target's own optimum strays from any law."""
    found = laws.surface.scatter
    return np.full(2, USUAL) if found is None else found


def _point(laws: Laws, route: Route, found: tuple[Array, Array], total: Array) -> Point:
    level = laws.options.interval
    answer = _widened(laws, route, found, total)
    target = target_loss(laws, total)
    return Point(
        learning_rate=exponential(answer[0], level),
        batch_size=exponential(answer[1], level),
        total_flops=float(np.exp(total[0])),
        target_loss=None if target is None else target.value,
    )


def _iso_loss_answer(laws: Laws, total: Array) -> tuple[Array, Array] | None:
    rate, batch = laws.learning_rate, laws.batch_size
    if rate.intercept is None or batch.intercept is None:
        return None
    count = len(total) - 1
    losses = np.ones(count + 1)
    if rate.form == "PowerLawOfLoss":
        if laws.loss_compute.status == "refused":
            return None
        curve = with_estimate(laws.draws.loss_compute, curve_estimate(laws), count)
        losses = curve[:, 0] + np.exp(curve[:, 1] - curve[:, 2] * total)
    answers = []
    for law, draws in ((rate, laws.draws.learning_rate), (batch, laws.draws.batch_size)):
        c = with_estimate(draws, np.array([law.intercept, law.slope], dtype=float), count)
        value = evaluate_form(law.quantity, law.form, c[:, 0], c[:, 1], losses, total)
        answers.append(np.log(np.maximum(value, 1e-300)))
    return answers[0], answers[1]


def _surface_answer(
    laws: Laws, query: PredictionQuery, total: Array
) -> tuple[Array, Array] | None:
    law = laws.surface
    if law.log_learning_rate is None or law.log_batch_size is None:
        return None
    if query.params is not None:
        n = np.full_like(total, np.log(query.params))
        d = total - np.log(flops_per_token(laws, query))
    elif law.frontier_log_ratio is not None:
        n = 0.5 * (total - np.log(law.flops_per_token_per_param) - law.frontier_log_ratio)
        d = n + law.frontier_log_ratio
    else:
        return None
    estimate = np.concatenate([law.log_learning_rate, law.log_batch_size])
    c = with_estimate(laws.draws.surface, estimate, len(total) - 1)
    n, d = n - law.log_params_centre, d - law.log_tokens_centre
    return c[:, 0] + c[:, 1] * n + c[:, 2] * d, c[:, 3] + c[:, 4] * n + c[:, 5] * d
