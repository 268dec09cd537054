"""What the laws say of the best learning rate and batch size at a question, how sure that is, and what it is expected to cost.

The joint surface answers. The iso-loss laws, which know of no sizes, answer for the form LinearInLogCompute alone, which the surface does
not have: in none of 2,200 questions of `make bench-science` and `benchmarks.coverage` had they an answer where the surface had none.

An optimum missed by e = (ln LR, ln B) wastes e'He/2 of ln D, H the joint surface's curvature, so that errors of
covariance S waste tr(HS)/2 on average. A wide interval along a flat valley costs little, a narrower one
across a steep valley much. All of it is computed without random numbers: whether there is an answer does
not depend on the seed.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.iso_loss_error import iso_loss_covariance
from isoloss.laws.answer.question import Question, loss_curve
from isoloss.laws.arrays import Array
from isoloss.laws.bootstrap import interval
from isoloss.laws.curves import Number, with_draws
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Interval, Refusal, RefusalReason, Route
from isoloss.laws.prediction import Point
from isoloss.usual import USUAL_CURVATURE, USUAL_TOKEN_SLOPE

ERROR_LEVELS = 51
"""Quantiles that stand for the distribution of a law's own error."""
MOST_WASTED = 0.25
"""ln D that the noise of the runs may be expected to make an answer waste; beyond, it is no better than a guess."""
TIMES_TRIED = 5.0
"""Widest interval of a learning rate or batch size, high over low, that is an answer, over that of the values tried.

Where one has no effect at all, a valley that chance made has intervals of 1 to 10^4 times, the answer's own then several times
wider than its errors say. Answers of published and synthetic sweeps have at most 1.4.
"""


@dataclass(frozen=True)
class Optimum:
    """Before it is composed with a checkpoint's past."""

    route: Route
    point: Point
    covariance: Array
    """(2, 2) second moments of the error of ln LR and ln B, that of the compute not counted."""
    noise: Array
    """(2, 2) the part of it that the noise of the runs explains."""


def best_pair(laws: Laws, question: Question) -> Optimum | None:
    """The best learning rate and batch size; None if what answers was refused, or knows no place to answer at."""
    wanted: Route = "iso-loss" if laws.options.form == "LinearInLogCompute" else "surface"
    found = _iso_loss(laws, question) if wanted == "iso-loss" else None
    route: Route = "surface" if found is None else "iso-loss"
    found = found or _surface(laws, question)
    if found is None:
        return None
    log_rate, log_batch, covariance, noise = found
    errors = np.sqrt(np.diag(covariance))
    point = Point(
        learning_rate=_interval(laws, log_rate, float(errors[0])),
        batch_size=_interval(laws, log_batch, float(errors[1])),
        total_flops=float(np.exp(question.log_flops)),
        target_loss=_target_loss(laws, question),
    )
    return Optimum(route, point, covariance, noise)


def rate_at_batch(laws: Laws, question: Question) -> Optimum:
    """The best learning rate at the question's batch size; the law of it must stand."""
    law, batch = laws.rate_at_batch, question.batch_size
    assert law.curve is not None and batch is not None and question.place is not None  # noqa: PT018  (checked with the query)
    log_params, log_tokens = question.place
    draws = law.curve.at(log_params, log_tokens, np.log(batch))
    variance, noise = law.variances(float(log_params[0]), float(log_tokens[0]), np.log(batch))
    error = float(np.sqrt(variance))
    point = Point(
        learning_rate=_interval(laws, draws, error),
        batch_size=Interval(batch, batch, batch),
        total_flops=float(np.exp(question.log_flops)),
        target_loss=_target_loss(laws, question),
    )
    return Optimum("fixed-batch", point, np.diag([variance, 0.0]), np.diag([noise, 0.0]))


def _surface(laws: Laws, question: Question) -> tuple[Array, Array, Array, Array] | None:
    """At the target's size and tokens; without a size, on the sweep's own ratio of the two."""
    surface, place = laws.surface, question.place
    if surface.optimum is None or place is None:
        return None
    log_params, log_tokens = place
    there = float(log_params[0]), float(log_tokens[0])
    covariance, noise = surface.error_at(*there), surface.noise_at(*there)
    if question.log_params is None:
        moved = surface.frontier_error(question.log_flops)
        covariance = covariance + np.outer(moved, moved)
    return *surface.optimum.at(log_params, log_tokens), covariance, noise


def _iso_loss(laws: Laws, question: Question) -> tuple[Array, Array, Array, Array] | None:
    """Along the frontier: the target's size does not matter."""
    rate, batch = laws.learning_rate.curve, laws.batch_size.curve
    if rate is None or batch is None:
        return None
    total, count = question.log_total, len(question.log_total) - 1
    loss: Number = 1.0
    log_rate = with_draws(rate, laws.draws.learning_rate, count).log_value(loss, total)
    log_batch = with_draws(batch, laws.draws.batch_size, count).log_value(loss, total)
    covariance = iso_loss_covariance(laws, question)
    return log_rate, log_batch, covariance, covariance


def _interval(laws: Laws, draws: Array, error: float) -> Interval:
    """Of the exponential: the estimate, and every other draw with each of the normal errors of this standard deviation."""
    levels = (np.arange(ERROR_LEVELS) + 0.5) / ERROR_LEVELS
    errors = error * np.array([NormalDist().inv_cdf(float(level)) for level in levels])
    return exponential(float(draws[0]), (draws[1:, None] + errors).ravel(), laws.options.interval)


def exponential(value: float, draws: Array, level: float) -> Interval:
    """The interval of exp(draws) about exp(value)."""
    found = interval(value, draws, level)
    return Interval(*(float(np.exp(min(v, 700.0))) for v in (found.value, found.low, found.high)))


def target_loss(laws: Laws, question: Question) -> Interval | None:
    """L at C_total, nats per token; None if the loss-compute law was refused."""
    curve = loss_curve(laws, len(question.log_total) - 1)
    if curve is None:
        return None
    losses = curve.loss(question.log_total)
    return interval(float(losses[0]), losses[1:], laws.options.interval)


def _target_loss(laws: Laws, question: Question) -> float | None:
    found = target_loss(laws, question)
    return None if found is None else found.value


# ------------------------------------------------------------------------------ expected regret


@dataclass(frozen=True)
class ExpectedRegret:
    """What an answer is expected to lose."""

    tokens: float
    """ln D wasted."""
    nats: float
    flops: float
    """The compute that this loss is worth: C_total times nats over |dL/d ln C|."""


def expected_regret(laws: Laws, question: Question, found: Optimum) -> ExpectedRegret:
    """Of an answer to the question."""
    wasted = _wasted(laws, found, found.covariance)
    nats = wasted * _token_slope(laws)
    return ExpectedRegret(
        tokens=wasted,
        nats=nats,
        flops=float(np.exp(question.log_flops)) * nats / _compute_slope(laws, question),
    )


def _wasted(laws: Laws, found: Optimum, covariance: Array) -> float:
    """ln D that errors of this covariance waste."""
    if found.route == "fixed-batch":
        curvature = np.diag([float(laws.rate_at_batch.curvature or USUAL_CURVATURE), 0.0])
    else:
        curvature = _token_curvature(laws)
    return 0.5 * float(np.trace(curvature @ covariance))


def loss_curvature(laws: Laws) -> Array:
    """(2, 2) Hessian of the loss over (ln LR, ln B) at its minimum, nats; as is usual if no surface shows it."""
    return _token_curvature(laws) * _token_slope(laws)


def _token_curvature(laws: Laws) -> Array:
    curvature = laws.surface.curvature
    return USUAL_CURVATURE * np.eye(2) if curvature is None else curvature


def _token_slope(laws: Laws) -> float:
    slope = laws.surface.token_slope
    return USUAL_TOKEN_SLOPE if slope is None else slope


def _compute_slope(laws: Laws, question: Question) -> float:
    """-dL/dlnC at C_total, nats; half of that over tokens, as compute is shared with the size, without a loss-compute law."""
    curve = laws.loss_compute.curve
    if curve is None:
        return 0.5 * _token_slope(laws)
    return float(curve.steepness(question.log_flops) * curve.loss(question.log_flops))


def too_vague(laws: Laws, found: Optimum) -> Refusal | None:
    """Refuse an answer that the noise of the runs alone leaves no better than a guess, or that could be nearly any value.

    What is taken as usual widens the interval, and refuses nothing: it is no evidence of this sweep.
    """
    wasted, errors = _wasted(laws, found, found.noise), np.sqrt(np.diag(found.noise))
    if wasted <= MOST_WASTED:
        return _without_effect(laws, errors)
    rate, batch = (float(np.exp(e)) for e in np.minimum(errors, 50.0))
    share, nats = 1.0 - float(np.exp(-wasted)), wasted * _token_slope(laws)
    return Refusal(
        RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE,
        f"By the runs' noise alone the answer is expected to waste {share:.0%} of the tokens ({nats:.2g} nats): the "
        f"best learning rate is only known to a factor of {rate:.2g}, the best batch size to one of {batch:.2g}; "
        f"the limit is {1.0 - np.exp(-MOST_WASTED):.0%}. The target is too far away for this sweep's noise. Add "
        "sizes or runs, or reduce the noise.",
        {
            "expected_waste": share,
            "expected_regret": nats,
            "learning_rate_factor": rate,
            "batch_size_factor": batch,
        },
    )


def _without_effect(laws: Laws, errors: Array) -> Refusal | None:
    """Refuse an answer of little waste because nothing that was tried of a hyperparameter makes a difference."""
    values = (laws.data.learning_rates, laws.data.batch_sizes)
    tried = np.array([np.log(max(each) / min(each)) if each else 0.0 for each in values])
    widths = 2.0 * NormalDist().inv_cdf(0.9) * errors
    every = np.exp(np.minimum(widths - tried, 50.0))
    worst = int(np.argmax(every))
    times = float(every[worst])
    if times <= TIMES_TRIED:
        return None
    quantity = ("learning_rate", "batch_size")[worst]
    words = quantity.replace("_", " ")
    return Refusal(
        RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE,
        f"The {words} makes no visible difference in these runs: the best one is only known to an interval {times:.2g} times as "
        f"wide as all {words}s that were tried; the limit is {TIMES_TRIED:g}. Try {words}s farther apart, or reduce the noise.",
        {"quantity": quantity, "times_tried": times, "limit": TIMES_TRIED},
    )
