"""The iso-loss laws' intervals far from the compute that was spent: their form is one of several."""

from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from isoloss import laws as engine
from isoloss.laws.answer.optimum import best_pair
from isoloss.laws.answer.question import Question, resolve
from tests.support.synthetic import Grid, Synthetic
from tests.support.synthetic import synthetic_runs as noisy_runs
from tests.support.synthetic_runs import synthetic_optimum, synthetic_runs

SEEDS = range(4)
FORMS: tuple[engine.LawForm, ...] = ("LinearInLogCompute",)


@cache
def fitted(form: engine.LawForm, seed: int) -> engine.Laws:
    return engine.fit_laws(
        synthetic_runs(seed=seed), engine.FitOptions(form=form, bootstrap_samples=60)
    )


def best_size(flops: float) -> float:
    """Parameters of the model that reaches the lowest loss with that compute, by the synthetic loss."""

    def loss(log_params: float) -> float:
        tokens = flops / 6.0 / np.exp(log_params)
        return float(400.0 / np.exp(log_params) ** 0.34 + 410.0 / tokens**0.28)

    return float(np.exp(minimize_scalar(loss, bounds=(15.0, 30.0), method="bounded").x))


def iso_loss(laws: engine.Laws, factor: float) -> tuple[engine.Point, tuple[float, float]]:
    """The answer of the iso-loss laws at so many times the largest compute, and the true optimum there."""
    flops = (laws.data.largest_flops or 0.0) * factor
    params = best_size(flops)
    question = resolve(laws, engine.PredictionQuery(total_flops=flops, params=params))
    assert isinstance(question, Question)
    found = best_pair(laws, question)
    assert found is not None
    assert found.route == "iso-loss"
    return found.point, synthetic_optimum(params, flops / 6.0 / params)


@pytest.mark.parametrize("factor", [1.0, 5.0, 20.0, 50.0])
@pytest.mark.parametrize("form", FORMS)
def test_the_intervals_of_iso_loss_laws_hold_the_optimum_at_any_distance(
    form: engine.LawForm, factor: float
) -> None:
    held = []
    for seed in SEEDS:
        point, optimum = iso_loss(fitted(form, seed), factor)
        intervals = (point.learning_rate, point.batch_size)
        held += [i.low <= x <= i.high for i, x in zip(intervals, optimum, strict=True)]
    assert np.mean(held) >= 0.75


@pytest.mark.parametrize("form", FORMS)
def test_they_grow_faster_than_the_distance(form: engine.LawForm) -> None:
    for quantity in ("learning_rate", "batch_size"):
        widths = []
        for factor in (4.0, 16.0, 64.0):
            interval = getattr(iso_loss(fitted(form, 0), factor)[0], quantity)
            widths.append(float(np.log(interval.high / interval.low)))
        assert widths[2] > 1.3 * widths[1] > 1.5 * widths[0]


@pytest.mark.parametrize("seed", range(3))
def test_the_error_that_decides_on_a_refusal_is_that_of_the_interval(seed: int) -> None:
    """Of the linear form, whose stored coefficients are quotients of the fitted ones: their draws have heavy tails."""
    runs = noisy_runs(
        Synthetic(), Grid(rates=5, batches=5), np.random.default_rng(seed), 0.0007, 0.002
    )
    laws = engine.fit_laws(
        runs, engine.FitOptions(form="LinearInLogCompute", bootstrap_samples=200)
    )
    query = engine.PredictionQuery(total_flops=5.0 * (laws.data.largest_flops or 0.0))
    question = resolve(laws, query)
    assert isinstance(question, Question)
    pair = best_pair(laws, question)
    assert pair is not None
    errors, point = np.sqrt(np.diag(pair.mean_error)), pair.point
    for error, found in zip(errors, (point.learning_rate, point.batch_size), strict=True):
        assert error == pytest.approx(np.log(found.high / found.low) / (2 * 1.2816), rel=0.4)
