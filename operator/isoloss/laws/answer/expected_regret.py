"""What an answer is expected to cost: the tokens that its own uncertainty wastes at the target.

An optimum missed by e = (ln LR, ln B) wastes e'He/2 of ln D, H the joint surface's curvature, so that errors of
covariance S waste tr(HS)/2 on average. A wide interval along a flat valley costs little, a narrower one
across a steep valley much. All of it is computed without random numbers: whether there is an answer does
not depend on the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.form_error import form_error, surface_form
from isoloss.laws.arrays import Array
from isoloss.laws.curves import HyperparameterCurve
from isoloss.laws.estimates import Target
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Refusal, RefusalReason, Route
from isoloss.laws.results import HyperparameterLaw
from isoloss.laws.surface.terms import design
from isoloss.usual import USUAL_CURVATURE, USUAL_TOKEN_SLOPE

MOST_WASTED = 0.25
"""ln D that an answer may be expected to waste; beyond, it is no better than a guess."""
TIMES_TRIED = 5.0
"""Widest interval of a learning rate or batch size, high over low, that is an answer, over that of the values tried.

Where one has no effect at all, a valley that chance made has intervals of 1 to 10^4 times, the answer's own then several times
wider than its errors say. Answers of published and planted sweeps have at most 1.4.
"""


@dataclass(frozen=True)
class ExpectedRegret:
    """What one answer is expected to waste."""

    tokens: float
    """ln D wasted."""
    nats: float
    errors: Array
    """(2,) standard deviations of ln LR and ln B."""
    tried: Array
    """(2,) ln of the largest value tried over the smallest; 0 without any."""

    @property
    def times_tried(self) -> Array:
        """(2,) widths of 80 % intervals over those of the values tried."""
        widths = 2.0 * NormalDist().inv_cdf(0.9) * self.errors
        return np.asarray(np.exp(np.minimum(widths - self.tried, 50.0)))


def expected_regret(laws: Laws, route: Route, target: Target) -> ExpectedRegret:
    """Expected regret of the answer by `route` at the target, whose first draw is the estimate."""
    covariance = (
        _surface_covariance(laws, target)
        if route == "surface"
        else _iso_loss_covariance(laws, target)
    )
    wasted = 0.5 * float(np.trace(_token_curvature(laws) @ covariance))
    return regret_of_waste(laws, wasted, np.sqrt(np.diag(covariance)))


def regret_of_waste(laws: Laws, wasted: float, errors: Array) -> ExpectedRegret:
    """That of an answer that wastes so much ln D because ln LR and ln B have such errors (2,)."""
    values = (laws.data.learning_rates, laws.data.batch_sizes)
    tried = np.array([np.log(max(each) / min(each)) if each else 0.0 for each in values])
    return ExpectedRegret(wasted, wasted * _token_slope(laws), errors, tried)


def loss_curvature(laws: Laws) -> Array:
    """(2, 2) Hessian of the loss over (ln LR, ln B) at its minimum, nats; as is usual if no surface shows it."""
    return _token_curvature(laws) * _token_slope(laws)


def _token_curvature(laws: Laws) -> Array:
    curvature = laws.surface.curvature
    return USUAL_CURVATURE * np.eye(2) if curvature is None else curvature


def _token_slope(laws: Laws) -> float:
    slope = laws.surface.token_slope
    return USUAL_TOKEN_SLOPE if slope is None else slope


def too_vague(found: ExpectedRegret) -> Refusal | None:
    """Refuse an answer that is expected to waste more tokens than any answer should, or could be nearly any value."""
    if found.tokens <= MOST_WASTED:
        return _without_effect(found)
    wasted = 1.0 - float(np.exp(-found.tokens))
    rate, batch = (float(np.exp(e)) for e in np.minimum(found.errors, 50.0))
    return Refusal(
        RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE,
        f"The answer would be expected to waste {wasted:.0%} of the tokens ({found.nats:.2g} nats): the best "
        f"learning rate is only known to a factor of {rate:.2g}, the best batch size to one of {batch:.2g}; "
        f"the limit is {1.0 - np.exp(-MOST_WASTED):.0%}. The target is too far away for this sweep's noise. Add "
        "sizes or runs, or reduce the noise.",
        {
            "expected_waste": wasted,
            "expected_regret": found.nats,
            "learning_rate_factor": rate,
            "batch_size_factor": batch,
        },
    )


def _without_effect(found: ExpectedRegret) -> Refusal | None:
    """Refuse an answer of little waste because nothing that was tried of a hyperparameter makes a difference."""
    worst = int(np.argmax(found.times_tried))
    times = float(found.times_tried[worst])
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


def _surface_covariance(laws: Laws, target: Target) -> Array:
    surface = laws.surface
    place = target.place(surface)
    assert surface.planes is not None and place is not None  # noqa: PT018  (it has answered there)
    if surface.law_covariance is None or surface.target_covariance is None:
        return np.zeros((2, 2))
    n, d = (float(np.ravel(value)[0]) for value in place)
    of_law = design(n - surface.planes.log_params_centre, d - surface.planes.log_tokens_centre)
    covariance = of_law @ surface.law_covariance @ of_law.T
    return np.asarray(covariance + surface_form(surface, target), dtype=float)


def _iso_loss_covariance(laws: Laws, target: Target) -> Array:
    log_flops = float(np.ravel(target.log_flops)[0])
    curve = laws.loss_compute.curve
    loss = 1.0 if curve is None else float(curve.loss(log_flops))
    own = [_law_variance(law, loss, log_flops) for law in (laws.learning_rate, laws.batch_size)]
    return np.diag(np.array(own) + form_error(laws, "iso-loss", target) ** 2)


def _law_variance(law: HyperparameterLaw, loss: float, log_flops: float) -> float:
    """Variance of ln x at a loss and compute, from the covariance of intercept and slope."""
    if law.curve is None or law.covariance is None:
        return 0.0
    step = 1e-4 * np.sqrt(np.maximum(np.diag(law.covariance), 1e-12))
    middle = law.curve.log_value(loss, log_flops)
    gradient = []
    for k in range(2):
        moved = [law.curve.intercept, law.curve.slope]
        moved[k] = moved[k] + step[k]
        curve = HyperparameterCurve(law.quantity, law.form, moved[0], moved[1])
        gradient.append(float(curve.log_value(loss, log_flops) - middle) / step[k])
    return float(np.array(gradient) @ law.covariance @ np.array(gradient))
