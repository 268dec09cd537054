"""An answer above every learning rate that runs of the sweep survived nearby.

A parabola through the runs that did not diverge knows nothing of the edge behind them, and its minimum can lie beyond it.
"""

from __future__ import annotations

import numpy as np

from isoloss.laws.answer.prediction import Point, PredictionQuery
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.results import StableRate


def above_stable_rates(laws: Laws, query: PredictionQuery, answer: Point) -> list[str]:
    """A sentence if it is, and a higher one diverged there."""
    nearest = _nearest(laws, query, answer)
    if (
        nearest is None
        or nearest.diverged is None
        or answer.learning_rate.value <= nearest.highest
    ):
        return []
    return [
        f"The answer, {answer.learning_rate.value:.3g}, is above every learning rate that was stable nearby: with "
        f"{nearest.params:.3g} parameters and a batch size of {nearest.batch_size:g} sequences, {nearest.highest:.3g} did not "
        f"diverge and {nearest.diverged:.3g} did. Use {nearest.highest:.3g}, or train one between them first."
    ]


def _nearest(laws: Laws, query: PredictionQuery, answer: Point) -> StableRate | None:
    """Of the nearest size, the nearest batch size; of the largest size if the question names none."""
    rates = laws.data.stable_rates
    if not rates:
        return None
    params = query.params or max(rate.params for rate in rates)
    return min(
        rates,
        key=lambda rate: (
            abs(np.log(rate.params / params)),
            abs(np.log(rate.batch_size / answer.batch_size.value)),
        ),
    )
