"""What the laws say of the best learning rate and batch size at a question, how sure that is, and what it is expected to cost.

The joint surface answers. The iso-loss laws, which know of no sizes, answer for the form LinearInLogCompute alone, which the surface does
not have: in none of 2,200 questions of `make bench-science` and `benchmarks.coverage` had they an answer where the surface had none.

An optimum missed by e = (ln LR, ln B) wastes e'He/2 of ln D, H the joint surface's curvature, so that errors of
covariance S waste tr(HS)/2 on average. A wide interval along a flat valley costs little, a narrower one
across a steep valley much. All of it is computed without random numbers: whether there is an answer does
not depend on the seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.question import Question, loss_slope
from isoloss.laws.arrays import LARGEST_LOG, Array
from isoloss.laws.bootstrap import exponential
from isoloss.laws.curves import HyperparameterCurve, Number, with_draws
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.iso_loss.levels import LEVELS
from isoloss.laws.model import Interval, Refusal, RefusalReason, Route
from isoloss.laws.prediction import Point, Refused
from isoloss.laws.refusals import law_figures
from isoloss.laws.results import HyperparameterLaw
from isoloss.laws.results import Optimum as FrontierOptimum
from isoloss.usual import (
    ISO_LOSS_SCATTER,
    USUAL_CURVATURE,
    USUAL_SIZE_CURVATURE,
)

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
    mean_error: Array
    """(2, 2) second moments of the error of ln LR and ln B as settings have it in the mean, that of the compute not counted."""
    noise: Array
    """(2, 2) covariance of the part of the error that the noise of the runs explains."""


def best_pair(laws: Laws, question: Question) -> Optimum | None:
    """The best learning rate and batch size; None if what answers was refused, or knows no place to answer at."""
    wanted: Route = "iso-loss" if laws.options.form == "LinearInLogCompute" else "surface"
    found = _iso_loss(laws, question) if wanted == "iso-loss" else None
    route: Route = "surface" if found is None else "iso-loss"
    found = found or _surface(laws, question)
    if found is None:
        return None
    log_rate, log_batch, covariance, mean_error, noise = found
    errors = np.sqrt(np.diag(covariance))
    point = Point(
        learning_rate=_interval(laws, log_rate, float(errors[0])),
        batch_size=_interval(laws, log_batch, float(errors[1])),
        total_flops=float(np.exp(question.log_flops)),
        target_loss=None if question.target_loss is None else question.target_loss.value,
    )
    return Optimum(route, point, mean_error, noise)


def rate_at_batch(laws: Laws, question: Question) -> Optimum:
    """The best learning rate at the question's batch size; the law of it must stand."""
    law, batch = laws.rate_at_batch, question.batch_size
    assert law.curve is not None and batch is not None and question.place is not None  # noqa: PT018  (checked with the query)
    log_params, log_tokens = question.place
    draws = law.curve.at(log_params, log_tokens, np.log(batch))
    there = float(log_params[0]), float(log_tokens[0]), float(np.log(batch))
    variance, mean_error, noise = law.variances(*there)
    error = float(np.sqrt(variance))
    point = Point(
        learning_rate=_interval(laws, draws, error),
        batch_size=Interval(batch, batch, batch),
        total_flops=float(np.exp(question.log_flops)),
        target_loss=None if question.target_loss is None else question.target_loss.value,
    )
    return Optimum("fixed-batch", point, np.diag([mean_error, 0.0]), np.diag([noise, 0.0]))


def without_a_place(laws: Laws) -> Refused:
    """The surface answers at a size; which one stands in for none is known from the iso-loss laws, and these were refused."""
    refusals = tuple(
        Refusal(
            RefusalReason.LAW_REFUSED,
            f"These laws answer only if the size of your model is named: {why.message}",
            law_figures(why),
        )
        for why in laws.refusals[:1]
    )
    return Refused(refusals, laws.warnings)


def by_route(laws: Laws, question: Question, route: Route) -> Optimum | None:
    """The optimum of the same kind of law; None if another answers this question."""
    if route == "fixed-batch":
        return rate_at_batch(laws, question)
    found = best_pair(laws, question)
    return found if found is not None and found.route == route else None


def _surface(laws: Laws, question: Question) -> tuple[Array, ...] | None:
    """Draws of ln LR and of ln B, second moments of their error, those in the mean, and of their noise, at the target's size and tokens;
    without a size, on the sweep's own ratio of the two."""
    surface, place = laws.surface, question.place
    if surface.optimum is None or place is None:
        return None
    log_params, log_tokens = place
    there = float(log_params[0]), float(log_tokens[0])
    errors = [surface.error_at(*there), surface.mean_error_at(*there)]
    if question.log_params is None:
        moved = surface.frontier_error(question.log_flops)
        errors = [error + np.outer(moved, moved) for error in errors]
    return *surface.optimum.at(log_params, log_tokens), *errors, surface.noise_at(*there)


def _iso_loss(laws: Laws, question: Question) -> tuple[Array, ...] | None:
    """The same along the frontier: the target's size does not matter."""
    rate, batch = laws.learning_rate.curve, laws.batch_size.curve
    if rate is None or batch is None:
        return None
    total, count = question.log_total, len(question.log_total) - 1
    loss: Number = 1.0
    log_rate = with_draws(rate, laws.draws.learning_rate, count).log_value(loss, total)
    log_batch = with_draws(batch, laws.draws.batch_size, count).log_value(loss, total)
    covariance = _iso_loss_covariance(laws, question)
    return log_rate, log_batch, covariance, covariance, covariance


def _interval(laws: Laws, draws: Array, error: float) -> Interval:
    """Of the exponential: the estimate, and every other draw with each of the normal errors of this standard deviation."""
    levels = (np.arange(ERROR_LEVELS) + 0.5) / ERROR_LEVELS
    errors = error * np.array([NormalDist().inv_cdf(float(level)) for level in levels])
    return exponential(float(draws[0]), (draws[1:, None] + errors).ravel(), laws.options.interval)


# --------------------------------------------- how far optima may be off the iso-loss laws, where these answer


def _iso_loss_covariance(laws: Laws, question: Question) -> Array:
    """(2, 2) of ln LR and ln B, which grows with the distance from the compute of the frontier and from its size."""
    own = [_law_variance(law, question.log_flops) for law in (laws.learning_rate, laws.batch_size)]
    errors = (
        np.full(2, ISO_LOSS_SCATTER),
        _far_off(laws, question.log_flops),
        _off_the_frontier(laws, question),
    )
    return np.diag(np.array(own) + sum(error**2 for error in errors))


def _far_off(laws: Laws, at: float) -> Array:
    """(2,) how far ln LR and ln B may be off at ln C = `at` because the iso-loss laws' form is one of several.

    A law of the loss or of compute is a line over ln C as far as the frontier can tell. If it bends, what its line leaves
    grows with the square of the distance, as over sizes, less so where a long frontier shows no bend.
    """
    shown = [
        optimum for optimum in laws.frontier if None not in (optimum.flops, optimum.learning_rate)
    ]
    seen = np.log([float(optimum.flops or 1.0) for optimum in shown])
    if len(seen) < 2:
        seen = _evenly(laws)
    if len(seen) == 0:
        return np.zeros(2)
    centre = float(seen.mean())
    n = seen - centre
    level, slope = float(np.mean(n**2)), 0.0
    if np.ptp(n) > 0.0:
        slope, level = (float(value) for value in np.polyfit(n, n**2, 1))
    left = n**2 - level - slope * n
    reach = abs((at - centre) ** 2 - level - slope * (at - centre))
    bends = [
        _possible_curvature(left, _deviations(law, shown), len(laws.data.sizes))
        for law in (laws.learning_rate, laws.batch_size)
    ]
    between = _between_forms(laws.batch_size.curve, at, float(seen.min()), float(seen.max()))
    return np.hypot(np.array(bends) * reach, [0.0, between])


def _off_the_frontier(laws: Laws, question: Question) -> Array:
    """(2,) how far ln LR and ln B of the target's size are from those of the size that needs the least compute.

    The iso-loss laws answer for the latter alone; the joint surface, where it stands, knows how much that matters.
    """
    surface, asked = laws.surface, question.place
    frontier = surface.on_the_frontier(question.log_total)
    if surface.optimum is None or frontier is None or asked is None:
        return np.zeros(2)
    there, least = (
        [float(value[0]) for value in surface.optimum.at(*place)] for place in (asked, frontier)
    )
    return np.abs(np.subtract(there, least))


def _evenly(laws: Laws) -> Array:
    """ln C of levels of a frontier whose points are not known; empty without any."""
    most = laws.data.largest_flops
    if most is None:
        return np.zeros(0)
    return np.linspace(np.log(laws.data.smallest_flops or most), np.log(most), LEVELS)


def _deviations(law: HyperparameterLaw, shown: Sequence[FrontierOptimum]) -> Array:
    """(points,) ln of the frontier's optima over the law's; empty without both."""
    curve = law.curve
    found = [(o.loss, o.flops, getattr(o, law.quantity)) for o in shown]
    if curve is None or not found or any(value is None for _, _, value in found):
        return np.zeros(0)
    losses, flops, values = np.array(found, dtype=float).T
    return np.asarray(np.log(values) - curve.log_value(losses, np.log(flops)), dtype=float)


def _possible_curvature(left: Array, deviations: Array, sizes: int) -> float:
    """Root mean square of a coefficient of (ln C)^2, which moves optima by `left` times it, given how these deviate.

    The levels of one size deviate as one.
    """
    # Along the frontier sizes grow with the root of compute.
    prior = (USUAL_SIZE_CURVATURE / 4.0) ** -2
    if len(deviations) != len(left):
        return float(prior**-0.5)
    seen = sizes * float(np.mean(left**2)) / ISO_LOSS_SCATTER**2
    mean = sizes * float(np.mean(left * deviations)) / ISO_LOSS_SCATTER**2 / (prior + seen)
    return float(np.sqrt(mean**2 + 1.0 / (prior + seen)))


def _between_forms(curve: HyperparameterCurve | None, at: float, low: float, high: float) -> float:
    """|difference| at ln C = `at` between ln B linear in ln C and the law, if that is B linear in ln C instead.

    Between `low` and `high`, the frontier's ln C, they are one law as far as it can tell.
    """
    if curve is None or curve.form != "LinearInLogCompute":
        return 0.0
    seen = np.linspace(low, high, LEVELS)
    values = curve.log_value(1.0, seen)
    # Below no sequence at all the law is none.
    seen, values = seen[values > 0.0], values[values > 0.0]
    if len(seen) < 2 or np.ptp(seen) <= 0.0:
        return 0.0
    line = np.polyfit(seen, values, 1)
    return min(abs(float(curve.log_value(1.0, at)) - float(np.polyval(line, at))), LARGEST_LOG)


def _law_variance(law: HyperparameterLaw, log_flops: float) -> float:
    """Variance of ln x at ln C, from the covariance of intercept and slope."""
    if law.curve is None or law.covariance is None:
        return 0.0
    step = 1e-4 * np.sqrt(np.maximum(np.diag(law.covariance), 1e-12))
    middle = law.curve.log_value(1.0, log_flops)
    gradient = []
    for k in range(2):
        moved = [law.curve.intercept, law.curve.slope]
        moved[k] = moved[k] + step[k]
        curve = HyperparameterCurve(law.quantity, law.form, moved[0], moved[1])
        gradient.append(float(curve.log_value(1.0, log_flops) - middle) / step[k])
    return float(np.array(gradient) @ law.covariance @ np.array(gradient))


# ------------------------------------------------------------------------------ expected regret


@dataclass(frozen=True)
class ExpectedRegret:
    """What an answer is expected to lose."""

    nats: float
    flops: float
    """The compute that makes up for it: C_total times nats over |dL/d ln C|, the share of the tokens that are wasted."""


def expected_regret(
    laws: Laws, question: Question, found: Optimum, errors: Array
) -> ExpectedRegret:
    """Of an answer to the question; `errors` are (2, 2) what composing adds to the optimum's error."""
    share = wasted(laws, found, found.mean_error + errors)
    return ExpectedRegret(
        nats=share * question.slope,
        flops=share * float(np.exp(question.log_flops)),
    )


def wasted(laws: Laws, found: Optimum, covariance: Array) -> float:
    """ln D that errors of this covariance waste."""
    if found.route == "fixed-batch":
        curvature = np.diag([float(laws.rate_at_batch.curvature or USUAL_CURVATURE), 0.0])
    else:
        curvature = token_curvature(laws)
    return 0.5 * float(np.trace(curvature @ covariance))


def loss_curvature(laws: Laws, log_flops: float | None = None) -> Array:
    """(2, 2) Hessian of the loss over (ln LR, ln B) at its minimum, nats. See loss_slope."""
    return token_curvature(laws) * loss_slope(laws, log_flops)


def token_curvature(laws: Laws) -> Array:
    """(2, 2) the same of the ln D that is wasted; as is usual if no surface shows it."""
    curvature = laws.surface.curvature
    return USUAL_CURVATURE * np.eye(2) if curvature is None else curvature


def too_vague(laws: Laws, question: Question, found: Optimum) -> Refusal | None:
    """Refuse an answer that the noise of the runs alone leaves no better than a guess, or that could be nearly any value.

    What is taken as usual widens the interval, and refuses nothing: it is no evidence of this sweep.
    """
    waste, errors = wasted(laws, found, found.noise), np.sqrt(np.diag(found.noise))
    if waste <= MOST_WASTED:
        return _without_effect(laws, errors)
    rate, batch = (float(np.exp(e)) for e in np.minimum(errors, LARGEST_LOG))
    share, nats = 1.0 - float(np.exp(-waste)), waste * question.slope
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
    every = np.exp(np.minimum(widths - tried, LARGEST_LOG))
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
