"""Questions about other batch sizes than the best one: the learning rate at a given one, and what others cost."""

from statistics import NormalDist

import numpy as np

from isoloss.laws.answer.optimum import loss_curvature
from isoloss.laws.answer.query_refusals import law_figures
from isoloss.laws.answer.question import Question
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Interval, Refusal, RefusalReason
from isoloss.laws.prediction import BatchSizeRange, Point
from isoloss.laws.refusals import NARROWEST_SPREAD

FARTHEST = 4.0
"""Factor beyond the batch sizes tried up to which the learning rate is told at one."""
EXACTLY = 1e-9
"""Relative error of a factor that floating point makes of an exact one."""
SAME = 1.1
"""The same factor when every size was trained with a single batch size, so that nothing shows what others want."""


def refuse_batch(laws: Laws, question: Question) -> Refusal | None:
    """Why there is no learning rate at the question's batch size; None if there is one."""
    law, batch = laws.rate_at_batch, question.batch_size
    assert batch is not None
    if law.refusal is not None:
        return Refusal(RefusalReason.LAW_REFUSED, law.refusal.message, law_figures(law.refusal))
    return _another_size(laws, question) or _too_far(laws, batch)


def _another_size(laws: Laws, question: Question) -> Refusal | None:
    """Refuse another size than the one that was trained, if it is one."""
    sizes = laws.data.sizes
    if laws.rate_at_batch.shows_params or question.log_params is None:
        return None
    if abs(question.log_params - np.log(sizes[0])) < NARROWEST_SPREAD:
        return None
    return Refusal(
        RefusalReason.TOO_FEW_SIZES,
        f"Only one size, {sizes[0]:.3g} parameters, has a batch size with three learning rates, and the best one depends on the "
        "size: it is known at that size alone. Train three learning rates at one batch size of another size.",
        {"sizes": len(sizes), "params": sizes[0]},
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
    sequences = batch / (laws.sequence_length or np.inf)
    if max(1.0, low / limit) <= sequences <= high * limit:
        known += f" If it is in tokens, write {sequences:.0f} sequences."
    return Refusal(
        RefusalReason.EXTRAPOLATION_TOO_FAR,
        f"The batch size, {batch:.6g} sequences, is too far from those with enough learning rates, {low:.4g} to {high:.4g}: "
        f"it must be at least {low / limit:.6g} and at most {high * limit:.6g}.{known}",
        {"value": batch, "factor": factor, "limit": limit},
    )


def batch_cost(laws: Laws, batch: float, best: Point) -> Interval | None:
    """Nats that a batch size costs over the best one, the learning rate being the best at each; None without a surface."""
    curvature = _batch_curvature(laws)
    if curvature is None:
        return None
    found = best.batch_size
    costs = [0.5 * curvature * float(np.log(batch / b)) ** 2 for b in (found.low, found.high)]
    inside = found.low <= batch <= found.high
    value = 0.5 * curvature * float(np.log(batch / found.value)) ** 2
    return Interval(value, 0.0 if inside else min(*costs, value), max(*costs, value))


def affordable(
    laws: Laws, tolerance: float, best: Point, largest: float | None
) -> BatchSizeRange | None:
    """Batch sizes whose expected cost, the best one's own uncertainty included, is within the tolerance.

    It ends where nothing is known of batch sizes, FARTHEST beyond those tried, at one sequence, and at the `largest` that the
    budget has enough steps for, None: any.
    """
    curvature = _batch_curvature(laws)
    if curvature is None:
        return None
    deviation = _deviation(best.batch_size, laws.options.interval)
    left = 2.0 * tolerance / curvature - deviation**2
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
    curvature = _batch_curvature(laws)
    if curvature is None:
        return "What other batch sizes cost is not known: the joint surface was refused."
    expected = 0.5 * curvature * _deviation(best.batch_size, laws.options.interval) ** 2
    return (
        f"No batch size is known to cost at most {tolerance:.2g} nats: the best one's own uncertainty is expected to cost "
        f"{expected:.2g} nats."
    )


def _batch_curvature(laws: Laws) -> float | None:
    """Second derivative of the loss over ln B, nats, the learning rate following; None without a surface."""
    if laws.surface.curvature is None:
        return None
    valley = loss_curvature(laws)
    return float(valley[1, 1] - valley[0, 1] ** 2 / valley[0, 0])


def _deviation(found: Interval, level: float) -> float:
    """Standard deviation of the logarithm, from an interval."""
    return float(np.log(found.high / found.low)) / (2.0 * NormalDist().inv_cdf(0.5 + level / 2))
