"""Where a search asks its laws for an optimum, and how they count FLOPs there."""

from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import FitOptions, Run
from isoloss.search import Point, Size
from isoloss.search.aiming import Located, locate
from tests.support.synthetic import Synthetic

TRUTH = Synthetic(rate_at=(1.2e-3, -0.4, 0.30), batch_at=(128.0, -0.05, 0.55))
FIT = FitOptions(bootstrap_samples=20)
SHARES = np.geomspace(0.05, 1.0, 12)
FACTORS = 0.35 * 2.0 ** np.arange(4)


def size(name: str, params: float, tokens: float) -> Size:
    """A 4 x 4 grid about its optimum."""
    batches = tuple(float(round(TRUTH.batch(params, tokens) * factor)) for factor in FACTORS)
    rates = tuple(float(TRUTH.rate(params, tokens) * factor) for factor in FACTORS)
    return Size(name, params, tokens, batches, rates)


SIZES = (size("s", 1e8, 8e9), size("m", 2e8, 1.2e10), size("l", 3e8, 2e10))


def run(of: Size, point: Point, ratio: float) -> Run:
    """A run whose FLOPs per token are `ratio` times 6N."""
    tokens, at = SHARES * of.tokens, (point.batch_size, point.learning_rate)
    losses = np.array([TRUTH.loss(of.params, t, *at) for t in tokens])
    found = Run(str(point), of.params, at[0], 2048, at[1], tokens, losses)
    return replace(found, flops_per_token=6.0 * ratio * of.params)


def runs(ratios: dict[str, float]) -> list[Run]:
    return [
        run(of, Point(of.name, b, lr), ratios[of.name])
        for of in SIZES
        if of.name in ratios
        for b in of.batch_sizes
        for lr in of.learning_rates
    ]


@pytest.mark.parametrize("ratios", [{"s": 1.5, "m": 1.4, "l": 1.3}, {"s": 1.4, "m": 1.4}], ids=str)
def test_laws_of_runs_with_flops_of_their_own_are_asked_for_all_tokens_of_the_size(ratios):
    """A size's own FLOPs, by which budgets count, are fewer: by those the laws would be asked for fewer tokens."""
    target = SIZES[-1]
    counted = locate(runs(ratios), target, FIT)
    plain = locate(runs(dict.fromkeys(ratios, 1.0)), target, FIT)
    assert isinstance(counted, Located)
    assert isinstance(plain, Located)
    for name, truth in (("batch_size", TRUTH.batch), ("learning_rate", TRUTH.rate)):
        found, same = (getattr(each, name).value for each in (counted, plain))
        assert found == pytest.approx(same, rel=0.02)
        assert found == pytest.approx(truth(target.params, target.tokens), rel=0.1)
