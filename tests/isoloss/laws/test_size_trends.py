"""A trend over sizes is halved only where it may be chance and the largest size speaks against it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from isoloss.laws import FitOptions, Laws, PredictionQuery, Refusal, fit_laws, predict
from isoloss.laws.data.cells import make_cells
from isoloss.laws.data.trajectories import collect
from isoloss.laws.surface.terms import TRENDS
from isoloss.laws.surface.token_range import fit_late_if_bent
from tests.support.synthetic import Deviating, Grid, Surface, Synthetic, synthetic_runs

THREE_SIZES = Grid(sizes=(1e8, 2e8, 4e8), tokens=(1e10, 1.5e10, 2e10), rates=4, batches=4)
NO_TREND = Synthetic(rate_at=(1.2e-3, 0.0, 0.15), batch_at=(128.0, -0.4, 0.45))
OPTIONS = FitOptions(bootstrap_samples=40)
SEEDS = range(6)


def fitted(surface: Surface, grid: Grid, seed: int = 0, noise: float = 0.0) -> Laws:
    rng = np.random.default_rng(seed)
    return fit_laws(synthetic_runs(surface, grid, rng, noise, noise), OPTIONS)


@cache
def without_trend(seed: int) -> Laws:
    return fitted(Deviating(NO_TREND, seed), THREE_SIZES, seed, 0.001)


def test_a_trend_that_stands_out_of_the_scatter_of_sizes_is_kept():
    for seed in range(3):
        laws = fitted(Deviating(Synthetic(), seed), THREE_SIZES, seed, 0.001)
        assert "learning_rate" not in laws.surface.halved_trends
        assert laws.surface.optimum.learning_rate.of_params == pytest.approx(-0.5, abs=0.2)


def test_a_trend_that_is_exact_is_kept_however_weak():
    """Without noise and scatter the largest size is predicted best with it."""
    surface = Synthetic(rate_at=(1.2e-3, -0.1, 0.15))
    laws = fitted(surface, THREE_SIZES)
    assert "learning_rate" not in laws.surface.halved_trends


def test_two_sizes_halve_no_trend():
    laws = fitted(NO_TREND, Grid(), noise=0.001)
    assert laws.surface.halved_trends == ()


def test_a_trend_that_is_chance_is_mostly_halved():
    found = [without_trend(seed).surface for seed in SEEDS]
    halved = [law for law in found if "learning_rate" in law.halved_trends]
    assert len(halved) >= len(SEEDS) / 2
    for law in halved:
        assert law.optimum.learning_rate.of_params == pytest.approx(0.0, abs=0.1)
        assert law.optimum.learning_rate.of_tokens == pytest.approx(0.15, abs=0.1)


def test_the_answer_is_midway_between_keeping_a_doubtful_trend_and_leaving_it_out():
    """The trend that it keeps is half of the one that the same runs show where nothing is halved."""
    laws = next(laws for laws in map(without_trend, SEEDS) if laws.surface.halved_trends)
    seed = next(seed for seed in SEEDS if without_trend(seed) is laws)
    runs = synthetic_runs(
        Deviating(NO_TREND, seed), THREE_SIZES, np.random.default_rng(seed), 0.001, 0.001
    )
    trajectories = collect(runs).trajectories
    found = fit_late_if_bent(trajectories, make_cells(trajectories))
    assert not isinstance(found, Refusal)
    at = TRENDS[laws.surface.halved_trends[0]]
    kept = found[0].law[at]
    halved = getattr(laws.surface.optimum, laws.surface.halved_trends[0]).of_params
    assert halved == pytest.approx(0.5 * kept, rel=1e-6)
    assert laws.surface.error.moments[at, at] > (0.5 * kept) ** 2


def test_what_is_halved_is_said():
    laws = next(laws for laws in map(without_trend, SEEDS) if laws.surface.halved_trends)
    flops = 10 * laws.data.largest_flops
    found = predict(laws, PredictionQuery(total_flops=flops, params=1e9))
    (sentence, *_) = [w for w in found.warnings if "only half of it is applied" in w]
    assert laws.surface.halved_trends[0].replace("_", " ") in sentence


@pytest.mark.parametrize(("sizes", "times"), [((1e8, 4e8), 8), ((1e8, 2e8, 4e8), 4)])
@pytest.mark.parametrize("at", [0, -1])
def test_a_micro_batch_given_as_the_batch_size_of_one_size_is_warned_of(sizes, times, at):
    grid = Grid(sizes=sizes, tokens=(1e10, 1.5e10, 2e10)[: len(sizes)], rates=4, batches=4)
    runs = synthetic_runs(Synthetic(), grid, np.random.default_rng(0), 0.001, 0.001)
    wrong = [
        replace(run, batch_size=run.batch_size / times) if run.params == sizes[at] else run
        for run in runs
    ]
    reported = "sequences per optimizer step, not per device"
    assert not [each for each in fit_laws(runs, OPTIONS).warnings if reported in each]
    assert [each for each in fit_laws(wrong, OPTIONS).warnings if reported in each]
