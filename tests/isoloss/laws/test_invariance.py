"""What must not matter: the order of the runs, the unit of the loss, the convention of compute."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoloss.laws import FitOptions, Laws, PredictionQuery, Run, fit_laws, predict
from tests.support.synthetic import Grid, Synthetic, synthetic_runs

OPTIONS = FitOptions(bootstrap_samples=30)
FEW = settings(max_examples=5)


@cache
def runs() -> tuple[Run, ...]:
    grid = Grid(evaluations=20)
    return tuple(synthetic_runs(Synthetic(), grid, np.random.default_rng(1), 0.0015))


@cache
def base() -> Laws:
    return fit_laws(runs(), OPTIONS)


def both_routes(laws: Laws, flops: float) -> list[float]:
    """The joint surface's answer and the iso-loss laws' optimum."""
    found = predict(laws, PredictionQuery(total_flops=flops))
    loss = laws.loss_compute.curve.loss(np.log(flops))
    return [
        found.learning_rate.value,
        found.learning_rate.low,
        found.batch_size_raw,
        found.batch_size.high,
        float(laws.learning_rate.curve.value(loss, np.log(flops))),
        float(laws.batch_size.curve.value(loss, np.log(flops))),
    ]


@FEW
@given(st.permutations(range(18)))
def test_the_order_of_the_runs_does_not_matter(order):
    laws = fit_laws([runs()[i] for i in order], OPTIONS)
    assert both_routes(laws, 1e20) == pytest.approx(both_routes(base(), 1e20), rel=1e-9)
    assert laws.loss_compute.irreducible_loss == pytest.approx(
        base().loss_compute.irreducible_loss
    )


@FEW
@given(st.sampled_from([1 / np.log(2), 0.25]) | st.floats(0.1, 10.0))
def test_losses_may_be_nats_or_bits(scale):
    laws = fit_laws([replace(r, losses=scale * r.losses) for r in runs()], OPTIONS)
    assert both_routes(laws, 1e20) == pytest.approx(both_routes(base(), 1e20), rel=1e-5)
    curve, original = laws.loss_compute, base().loss_compute
    assert curve.irreducible_loss == pytest.approx(scale * original.irreducible_loss, rel=1e-4)
    assert curve.gamma == pytest.approx(original.gamma, rel=1e-4)


@FEW
@given(st.floats(0.2, 5.0))
def test_a_common_factor_of_compute_moves_nothing_but_the_scale(factor):
    scaled = [replace(r, flops_per_token=factor * 6.0 * r.params) for r in runs()]
    laws = fit_laws(scaled, OPTIONS)
    found = both_routes(laws, factor * 1e20)
    assert found == pytest.approx(both_routes(base(), 1e20), rel=1e-5)
    assert laws.data.largest_flops == pytest.approx(factor * base().data.largest_flops)


@FEW
@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0))
def test_units_of_batch_size_and_learning_rate_carry_through(rate, batch):
    scaled = [
        replace(r, learning_rate=rate * r.learning_rate, batch_size=batch * r.batch_size)
        for r in runs()
    ]
    found = both_routes(fit_laws(scaled, OPTIONS), 1e20)
    units = (rate, rate, batch, batch, rate, batch)
    wanted = [value * unit for value, unit in zip(both_routes(base(), 1e20), units, strict=True)]
    assert found == pytest.approx(wanted, rel=1e-5)


@settings(max_examples=3)
@given(st.integers(0, 2**31 - 1))
def test_the_same_seed_gives_the_same_laws(seed):
    options = replace(OPTIONS, seed=seed)
    one, two = fit_laws(runs(), options), fit_laws(runs(), options)
    assert both_routes(one, 1e20) == both_routes(two, 1e20)
