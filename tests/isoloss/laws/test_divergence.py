"""An answer above all learning rates that runs of the sweep survived says so."""

from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import FitOptions, Laws, Prediction, Run, fit_laws
from isoloss.laws.results import StableRate
from tests.support.synthetic import Grid, Synthetic, synthetic_runs
from tests.support.synthetic_runs import answered

GRID = Grid(sizes=(1e8, 2e8, 4e8), tokens=(4e9, 8e9, 1.6e10), rates=4, batches=4)
LARGEST = 4e8


def sweep(diverged_from: float = np.inf) -> list[Run]:
    """Runs from this learning rate on ended early and marked as diverged."""
    runs = synthetic_runs(Synthetic(), GRID, np.random.default_rng(0), 0.0005)
    return [
        replace(r, diverged=True, tokens=r.tokens[:1], losses=r.losses[:1])
        if r.learning_rate >= diverged_from
        else r
        for r in runs
    ]


@pytest.fixture(scope="module")
def laws() -> Laws:
    return fit_laws(sweep(), FitOptions(bootstrap_samples=50))


def answer(laws: Laws, **query: float) -> Prediction:
    asked = {"total_flops": laws.data.largest_flops, "params": LARGEST, **query}
    return answered(laws, **asked)


def message(answer: Prediction) -> list[str]:
    return [warning for warning in answer.warnings if "stable nearby" in warning]


def with_rates(laws: Laws, *rates: StableRate) -> Laws:
    return replace(laws, data=replace(laws.data, stable_rates=rates))


def test_of_every_size_and_batch_size_the_laws_keep_which_learning_rates_were_stable():
    runs = sweep()
    rates = sorted({r.learning_rate for r in runs if r.params == LARGEST})
    limit = rates[-1]
    found = fit_laws(sweep(limit), FitOptions(bootstrap_samples=20)).data.stable_rates
    assert len(found) == len({(r.params, r.batch_size) for r in runs})
    for rate in found:
        own = sorted(
            r.learning_rate
            for r in runs
            if (r.params, r.batch_size) == (rate.params, rate.batch_size)
        )
        higher = [value for value in own if value >= limit]
        assert rate.highest == max(value for value in own if value < limit)
        assert rate.diverged == (min(higher) if higher else None)


def test_a_run_without_evaluations_shows_no_rate_to_be_stable():
    silent = replace(sweep()[0], tokens=np.array([]), losses=np.array([]))
    assert fit_laws([silent]).data.stable_rates == ()


@pytest.mark.parametrize("given", [{}, {"batch_size": 128.0}])
def test_an_answer_above_all_that_was_stable_where_a_higher_one_diverged_says_so_first(
    laws, given
):
    plain = answer(laws, **given)
    rate, batch = plain.learning_rate.value, plain.batch_size.value
    edge = StableRate(LARGEST, batch, 0.9 * rate, 1.3 * rate)
    warned = answer(with_rates(laws, edge), **given)
    assert message(warned) == list(warned.warnings[:1])
    assert f"{edge.highest:.3g} did not diverge and {edge.diverged:.3g} did" in warned.warnings[0]
    assert warned.learning_rate == plain.learning_rate


def test_only_the_nearest_size_and_batch_size_speak_and_only_if_a_higher_rate_diverged(laws):
    plain = answer(laws)
    rate, batch = plain.learning_rate.value, plain.batch_size.value
    assert message(plain) == []
    below, fine = (0.5 * rate, 0.7 * rate), (1.1 * rate, 1.3 * rate)
    for others in (
        [StableRate(LARGEST, batch, 0.9 * rate)],
        [StableRate(LARGEST, batch, *fine), StableRate(LARGEST, 2 * batch, *below)],
        [StableRate(LARGEST, batch, *fine), StableRate(LARGEST / 4, batch, *below)],
    ):
        assert message(answer(with_rates(laws, *others))) == []
