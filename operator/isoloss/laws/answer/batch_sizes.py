"""Questions about other batch sizes than the best one: the learning rate at a given one, and what others cost."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.expected_regret import loss_curvature, regret_of_waste, too_vague
from isoloss.laws.answer.prediction import BatchSizeRange, Point, PredictionQuery
from isoloss.laws.answer.query_refusals import law_figures
from isoloss.laws.answer.routes import deviating, exponential, target_loss, target_of
from isoloss.laws.estimates import with_draws
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Interval, Refusal, RefusalReason

FARTHEST = 4.0
"""Factor beyond the batch sizes tried up to which the learning rate is told at one."""
EXACTLY = 1e-9
"""Relative error of a factor that floating point makes of an exact one."""
SAME = 1.1
"""The same factor when every size was trained with a single batch size, so that nothing shows what others want."""


def rate_at(laws: Laws, query: PredictionQuery, total: np.ndarray) -> Point | Refusal:
    """The learning rate at the batch size of the query and ln C (draws), or why there is none."""
    law, batch = laws.rate_at_batch, query.batch_size
    assert batch is not None
    if law.curve is None:
        assert law.refusal is not None
        return Refusal(RefusalReason.LAW_REFUSED, law.refusal.message, law_figures(law.refusal))
    assert law.curvature is not None and law.bend is not None and law.token_bend is not None  # noqa: PT018
    far = _too_far(laws, batch)
    if far is not None:
        return far
    target = target_of(laws, query, total)
    assert target.log_params is not None and target.log_tokens is not None  # noqa: PT018  (checked with the query)
    curve = with_draws(law.curve, laws.draws.rate_at_batch, target.draws)
    tokens = np.asarray(target.log_tokens)[: curve.count]
    draws = curve.at(target.log_params, tokens, np.log(batch))
    log_params = float(target.log_params)
    bends = law.bend.error(log_params), law.token_bend.error(log_params, float(tokens[0]))
    bend, shown = (float(each[0]) for each in bends)
    own = float(np.hypot(law.scatter, bend))
    everything = deviating(draws, own, curve.deviation_scale, shown)
    variance = float(np.var(everything[1:])) if len(everything) > 1 else 0.0
    wasted = 0.5 * float(law.curvature) * variance
    vague = too_vague(regret_of_waste(laws, wasted, np.array([np.sqrt(variance), 0.0])))
    if vague is not None:
        return vague
    loss = target_loss(laws, total)
    return Point(
        learning_rate=exponential(everything, laws.options.interval),
        batch_size=Interval(batch, batch, batch),
        total_flops=float(np.exp(total[0])),
        target_loss=None if loss is None else loss.value,
    )


def _too_far(laws: Laws, batch: float) -> Refusal | None:
    """Refuse a batch size that is too far from those tried."""
    law = laws.rate_at_batch
    low, high = float(law.smallest_batch or batch), float(law.largest_batch or batch)
    limit = FARTHEST if law.shows_batch else SAME
    factor = max(low / batch, batch / high)
    if factor <= limit * (1.0 + EXACTLY):
        return None
    known = (
        ""
        if law.shows_batch
        else " Every size has a single batch size: others may want another learning rate."
    )
    return Refusal(
        RefusalReason.EXTRAPOLATION_TOO_FAR,
        f"The batch size, {batch:.6g} sequences, is too far from those with enough learning rates, {low:.4g} to {high:.4g}: "
        f"it must be at least {low / limit:.6g} and at most {high * limit:.6g}.{known}",
        {"value": batch, "factor": factor, "limit": limit},
    )


def batch_cost(laws: Laws, batch: float, best: Point) -> Interval | None:
    """Nats that a batch size costs over the best one, the learning rate being the best at each; None without a surface."""
    bend = _bend(laws)
    if bend is None:
        return None
    found = best.batch_size
    costs = [0.5 * bend * float(np.log(batch / b)) ** 2 for b in (found.low, found.high)]
    inside = found.low <= batch <= found.high
    value = 0.5 * bend * float(np.log(batch / found.value)) ** 2
    return Interval(value, 0.0 if inside else min(*costs, value), max(*costs, value))


def affordable(
    laws: Laws, tolerance: float, best: Point, largest: float | None
) -> BatchSizeRange | None:
    """Batch sizes whose expected cost, the best one's own uncertainty included, is within the tolerance.

    It ends where nothing is known of batch sizes, FARTHEST beyond those tried, at one sequence, and at the `largest` that the
    budget has enough steps for, None: any.
    """
    bend = _bend(laws)
    if bend is None:
        return None
    deviation = _deviation(best.batch_size, laws.options.interval)
    left = 2.0 * tolerance / bend - deviation**2
    if left < 0.0:
        return None
    reach, middle = float(np.sqrt(left)), float(np.log(best.batch_size.value))
    low, high = float(np.exp(middle - reach)), float(np.exp(middle + reach))
    least, most = _known(laws, best.batch_size.value)
    fewest = min(1.0, best.batch_size.value)
    longest = max(largest or np.inf, best.batch_size.value)
    return BatchSizeRange(
        tolerance,
        max(low, least, fewest),
        float(min(high, most, longest)),
        is_open_below=least > max(low, fewest),
        is_open_above=most < min(high, longest),
    )


def _known(laws: Laws, best: float) -> tuple[float, float]:
    """The smallest and largest batch size that anything is known of, the best one among them."""
    tried, law = laws.data.batch_sizes or (best,), laws.rate_at_batch
    smallest, largest = law.smallest_batch or min(tried), law.largest_batch or max(tried)
    return min(smallest / FARTHEST, best), max(largest * FARTHEST, best)


def range_sentences(found: BatchSizeRange) -> tuple[str, ...]:
    """Where a range ends because nothing is known beyond, in words."""
    ends = [
        *(["down to its smallest batch size"] if found.is_open_below else []),
        *(["up to its largest batch size"] if found.is_open_above else []),
    ]
    if not ends:
        return ()
    return (
        f"The range within {found.tolerance:.2g} nats reaches at least {' and at least '.join(ends)}: beyond {FARTHEST:g} times "
        "the batch sizes tried nothing is known.",
    )


def not_affordable(laws: Laws, tolerance: float, best: Point) -> str:
    """Why no batch size is within the tolerance."""
    bend = _bend(laws)
    if bend is None:
        return "What other batch sizes cost is not known: the joint surface was refused."
    expected = 0.5 * bend * _deviation(best.batch_size, laws.options.interval) ** 2
    return (
        f"No batch size is known to cost at most {tolerance:.2g} nats: the best one's own uncertainty is expected to cost "
        f"{expected:.2g} nats."
    )


def _bend(laws: Laws) -> float | None:
    """Second derivative of the loss over ln B, nats, the learning rate following; None without a surface."""
    if laws.surface.curvature is None:
        return None
    bend = loss_curvature(laws)
    return float(bend[1, 1] - bend[0, 1] ** 2 / bend[0, 0])


def _deviation(found: Interval, level: float) -> float:
    """Standard deviation of the logarithm, from an interval."""
    return float(np.log(found.high / found.low)) / (2.0 * NormalDist().inv_cdf(0.5 + level / 2))
