"""The seed moves the ends of intervals a little, and nothing else."""

from functools import cache

import numpy as np
import pytest

from isoloss.laws import FitOptions, Laws, Prediction, fit_laws
from tests.support.synthetic import Deviating, Grid, Synthetic, synthetic_runs
from tests.support.synthetic_runs import answered

GRIDS = {
    "two": Grid(),
    "three": Grid(sizes=(1e8, 2e8, 4e8), tokens=(1e10, 1.5e10, 2e10), rates=4, batches=4),
}
SEEDS = range(6)


@cache
def laws_of(grid: str, seed: int) -> Laws:
    surface = Deviating(Synthetic(), 2)
    runs = synthetic_runs(surface, GRIDS[grid], np.random.default_rng(5), 0.0015, 0.0015)
    return fit_laws(runs, FitOptions(seed=seed))


def answer(laws: Laws) -> Prediction:
    return answered(laws, initial_loss=3.0, cpt_flops=2e20, params=1e9)


def estimates(laws: Laws) -> list[object]:
    found = answer(laws)
    curve = laws.loss_compute
    return [
        (found.learning_rate.value, found.batch_size_raw, found.route),
        found.equivalent_flops.value,
        (curve.irreducible_loss, curve.log_alpha, curve.gamma),
        [(o.loss, o.learning_rate, o.batch_size, o.refusal) for o in laws.frontier],
        [refusal.reason for refusal in laws.refusals],
    ]


@pytest.mark.parametrize("grid", GRIDS)
def test_the_estimate_and_its_route_do_not_depend_on_the_seed(grid):
    first = estimates(laws_of(grid, 0))
    for seed in SEEDS:
        assert estimates(laws_of(grid, seed)) == first


@pytest.mark.parametrize("grid", GRIDS)
def test_the_estimate_does_not_depend_on_the_number_of_samples(grid):
    runs = synthetic_runs(Synthetic(), GRIDS[grid], np.random.default_rng(5), 0.0015, 0.0015)
    few, many = (fit_laws(runs, FitOptions(bootstrap_samples=n)) for n in (20, 400))
    assert estimates(few) == estimates(many)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("quantity", ["learning_rate", "batch_size"])
def test_intervals_are_stable_over_seeds(grid, quantity):
    """The standard deviation of a log width over seeds, as a share of the width."""
    found = [getattr(answer(laws_of(grid, seed)), quantity) for seed in SEEDS]
    widths = np.log([interval.high / interval.low for interval in found])
    assert widths.std() < 0.05 * widths.mean()
