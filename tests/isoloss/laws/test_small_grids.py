"""Three by three grids around the optimum at the end of training are enough."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.science.cases import planted_case
from benchmarks.science.shapes import SMALL
from isoloss.laws import FitOptions, Prediction, PredictionQuery, RefusalReason, fit_laws, predict
from tests.support.planted import Grid, Planted, planted_runs

OPTIONS = FitOptions(bootstrap_samples=60)


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_of_early_cells_may_be_outside_the_grid(seed):
    """The best batch size grows fourfold along a run; only its end must be inside."""
    case = planted_case("exact", SMALL, seed)
    laws = fit_laws(case.runs, OPTIONS)
    assert laws.surface.refusal is None
    for n, d, truth in case.targets:
        found = predict(laws, PredictionQuery(total_flops=6 * n * d, params=n))
        assert isinstance(found, Prediction)
        assert truth.regret(found.learning_rate.value, found.batch_size_raw) < 0.001


def test_an_optimum_that_is_outside_at_the_end_is_still_refused():
    grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(8e9, 1.2e10, 2e10), shift=(0.0, -1.6))
    laws = fit_laws(planted_runs(Planted(), grid, np.random.default_rng(0), 0.0003), OPTIONS)
    refusal = laws.surface.refusal
    assert refusal.reason is RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE
    assert refusal.figures["direction"] == "larger"
    assert "From 25% of every size's tokens on" in refusal.message


def test_nobody_is_sent_to_smaller_batches_that_only_early_tokens_want():
    """The batch grid begins where the optimum of the last quarter does."""
    grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(8e9, 1.2e10, 2e10), shift=(0.0, 0.55))
    runs = planted_runs(Planted(), grid, np.random.default_rng(0), 0.0003)
    laws = fit_laws(runs, OPTIONS)
    assert laws.surface.refusal is None
    short = [replace(r, tokens=r.tokens[-5:], losses=r.losses[-5:]) for r in runs]
    assert fit_laws(short, OPTIONS).surface.refusal is None
