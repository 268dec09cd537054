"""How far optima may be off the iso-loss laws, which answer for the form that is linear in ln C."""

from collections.abc import Sequence

import numpy as np

from isoloss.laws.answer.question import Question
from isoloss.laws.arrays import Array
from isoloss.laws.curves import HyperparameterCurve
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.results import HyperparameterLaw, Optimum
from isoloss.usual import ISO_LOSS_SCATTER, USUAL_COMPUTE_CURVATURE

LEVELS = 24
"""Places on a frontier, evenly spaced, that stand for its own."""
MOST = 50.0
"""Largest difference of logarithms: anything beyond is refused."""


def iso_loss_covariance(laws: Laws, question: Question) -> Array:
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


def _deviations(law: HyperparameterLaw, shown: Sequence[Optimum]) -> Array:
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
    prior = USUAL_COMPUTE_CURVATURE**-2
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
    return min(abs(float(curve.log_value(1.0, at)) - float(np.polyval(line, at))), MOST)


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
