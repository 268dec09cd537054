"""Sweeps whose optima come of simulated steps of SGD, on small grids that lie off: their valleys are no parabolas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from benchmarks.science.noisy_steps import NoisySteps
from benchmarks.science.shapes import Layout, runs_on
from isoloss.laws import (
    FitOptions,
    Prediction,
    PredictionQuery,
    RefusalReason,
    Run,
    fit_laws,
    predict,
)

TRUTH = NoisySteps()
SIZES, TOKENS = (2e7, 8e7, 3e8), (1.5e9, 4e9, 1.2e10)


def sweep(rates: int, batches: int, seed: int, step: float = 2.0) -> tuple[Run, ...]:
    layout = Layout(SIZES, TOKENS, rates, batches, float(np.log(step)))
    return runs_on(TRUTH, layout, seed)


@pytest.mark.parametrize(("rates", "batches"), [(4, 4), (5, 5), (4, 3)])
def test_the_best_learning_rate_of_the_largest_size_is_found_within_a_tenth(
    rates: int, batches: int
) -> None:
    """A parabola through all points errs by 0.2 to 0.3 of ln LR, always to the same side."""
    off, held = [], []
    for seed in range(6):
        laws = fit_laws(sweep(rates, batches, seed), FitOptions(bootstrap_samples=60))
        n, d = SIZES[-1], TOKENS[-1]
        found = predict(laws, PredictionQuery(total_flops=6 * n * d, params=n))
        assert isinstance(found, Prediction)
        rate, truth = found.learning_rate, TRUTH.rate(n, d)
        off.append(np.log(rate.value / truth))
        held.append(rate.low <= truth <= rate.high)
    assert abs(np.mean(off)) < 0.1
    assert np.mean(held) > 0.6


def test_the_best_learning_rate_at_a_given_batch_size_is_found_and_held() -> None:
    """It rises with the batch size and then stays: one that is linear in ln B errs by 0.16 in the mean, always to the same side."""
    n, d, off, held = SIZES[-1], TOKENS[-1], [], []
    usual = np.log(TRUTH.rate(n, d))
    for seed in range(4):
        laws = fit_laws(sweep(5, 5, seed), FitOptions(bootstrap_samples=60))
        for factor in (0.5, 2.0):
            batch = factor * TRUTH.batch(n, d)
            query = PredictionQuery(total_flops=6 * n * d, params=n, batch_size=batch)
            found = predict(laws, query)
            assert isinstance(found, Prediction)
            best = minimize_scalar(
                lambda log_rate, batch=batch: TRUTH.loss(n, d, batch, float(np.exp(log_rate))),
                bounds=(usual - 2.0, usual + 2.0),
                method="bounded",
            ).x
            rate = found.learning_rate
            off.append(np.log(rate.value) - best)
            held.append(np.log(rate.low) <= best <= np.log(rate.high))
    assert abs(np.mean(off)) < 0.1
    assert np.mean(held) >= 0.75


@pytest.mark.parametrize(("step", "times"), [(3.0, 4.0), (3.0, 6.0), (2.0, 4.0)])
def test_learning_rates_of_which_one_alone_is_near_the_best_show_a_wall_and_no_valley(
    step: float, times: float
) -> None:
    """Grids that lie so many times too high were answered just above their lowest learning rate, which lost 0.005 to 0.02 nats."""
    for seed in range(3):
        high = []
        for at, run in enumerate(sweep(3, 3, seed, step)):
            rate, rng = times * run.learning_rate, np.random.default_rng([seed, at])
            losses = [TRUTH.loss(run.params, t, run.batch_size, rate) for t in run.tokens]
            noisy = np.array(losses) + 0.001 * rng.standard_normal()
            high.append(replace(run, learning_rate=rate, losses=noisy))
        law = fit_laws(high, FitOptions(bootstrap_samples=20)).rate_at_batch
        assert law.refusal is not None
        assert law.refusal.reason is RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE
        assert law.refusal.figures["direction"] == "smaller"


def lost(shift: float, seed: int) -> float | None:
    """Nats that the answer loses at the largest size, whose 3 x 3 grid of batch sizes is moved by so many steps; None without one."""
    runs = [
        Run(
            run.name,
            run.params,
            float(np.round(run.batch_size * 2.0**shift)),
            run.sequence_length,
            run.learning_rate,
            run.tokens,
            np.array(
                [
                    TRUTH.loss(
                        run.params, t, np.round(run.batch_size * 2.0**shift), run.learning_rate
                    )
                    for t in run.tokens
                ]
            )
            + 0.001 * np.random.default_rng([seed, at]).standard_normal(),
        )
        for at, run in enumerate(sweep(3, 3, seed))
    ]
    laws = fit_laws(runs, FitOptions(bootstrap_samples=60))
    n, d = SIZES[-1], TOKENS[-1]
    found = predict(laws, PredictionQuery(total_flops=6 * n * d, params=n))
    if not isinstance(found, Prediction):
        return None
    best = TRUTH.loss(n, d, TRUTH.batch(n, d), TRUTH.rate(n, d))
    return TRUTH.loss(n, d, found.batch_size_raw, found.learning_rate.value) - best


def test_an_optimum_just_beyond_a_small_grid_is_answered_and_one_far_beyond_is_not() -> None:
    near = [lost(shift, seed) for shift in (-1.25, -1.75) for seed in range(4)]
    assert all(found is not None and found < 0.0005 for found in near)
    assert [lost(-2.75, seed) for seed in range(4)] == [None] * 4
