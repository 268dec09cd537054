"""Where the optimum is outside the grid, the first refusal names the hyperparameter that is."""

import numpy as np
import pytest

from isoloss.laws import FitOptions, PredictionQuery, RefusalReason, fit_laws
from tests.support.synthetic import Deviating, Grid, Synthetic, synthetic_runs
from tests.support.synthetic_laws import refusal_of

EDGES = {
    (1.6, 0.0): (RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE, "smaller"),
    (-1.6, 0.0): (RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE, "larger"),
    (0.0, 1.8): (RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE, "smaller"),
    (0.0, -1.8): (RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE, "larger"),
}


@pytest.mark.parametrize("shift", EDGES)
def test_the_edge_that_is_named_first_is_the_one_that_the_optimum_is_beyond(shift):
    right = 0
    for seed in range(5):
        grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(8e9, 1.2e10, 2e10), shift=shift)
        world, rng = Deviating(Synthetic(), seed), np.random.default_rng(seed)
        laws = fit_laws(
            synthetic_runs(world, grid, rng, 0.0005, 0.0015), FitOptions(bootstrap_samples=20)
        )
        found = refusal_of(laws, PredictionQuery(total_flops=6 * 4e8 * 3e10, params=4e8))
        first = found.refusals[0]
        named = RefusalReason(first.figures.get("law_reason", first.reason))
        right += (named, first.figures.get("direction")) == EDGES[shift]
    assert right >= 4
