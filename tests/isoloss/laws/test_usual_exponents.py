"""The exponents that batch sizes follow: as published where a sweep leaves them open, the sweep's own elsewhere."""

import numpy as np
import pytest

from isoloss.laws import FitOptions, fit_laws
from isoloss.laws.surface.terms import LawTerm
from isoloss.laws.surface.uncertainty import OBSERVED
from isoloss.usual import USUAL_BATCH_EXPONENTS
from tests.support.synthetic import Grid, Synthetic, synthetic_runs

OF_PARAMS, OF_TOKENS = LawTerm.BATCH_OF_PARAMS, LawTerm.BATCH_OF_TOKENS
USUAL = dict(zip(OBSERVED, USUAL_BATCH_EXPONENTS, strict=True))


def exponents_of_batch(
    surface: Synthetic, grid: Grid, noise: float, seed: int
) -> tuple[float, ...]:
    """Of N and D, as fitted."""
    runs = synthetic_runs(surface, grid, np.random.default_rng(seed), noise, noise)
    fitted = fit_laws(runs, FitOptions(bootstrap_samples=20)).surface.optimum
    return fitted.batch_size.of_params, fitted.batch_size.of_tokens


@pytest.mark.parametrize("exponent", [0.2, 0.8])
def test_a_sweep_that_shows_an_unusual_exponent_of_tokens_keeps_most_of_it(
    exponent: float,
) -> None:
    surface = Synthetic(batch_at=(128.0, -0.05, exponent))
    _, found = exponents_of_batch(surface, Grid(seen_from=0.02), 0.0002, 0)
    assert abs(found - exponent) < 0.3 * abs(USUAL[OF_TOKENS] - exponent)


@pytest.mark.parametrize("exponent", [-0.7, 0.4])
def test_a_sweep_that_shows_an_unusual_exponent_of_sizes_keeps_most_of_it(exponent: float) -> None:
    surface = Synthetic(batch_at=(128.0, exponent, 0.45))
    found, _ = exponents_of_batch(surface, Grid(seen_from=0.02), 0.0002, 0)
    assert abs(found - exponent) < 0.2 * abs(USUAL[OF_PARAMS] - exponent)


def test_noisy_runs_over_few_tokens_do_not_make_up_an_exponent() -> None:
    """By least squares alone one of these ten sweeps finds an exponent of 0.98."""
    surface = Synthetic(batch_at=(128.0, -0.05, 0.45))
    found = [
        exponents_of_batch(surface, Grid(seen_from=0.5), 0.004, seed)[1] for seed in range(10)
    ]
    assert np.std(found) < 0.12
    assert np.mean(found) == pytest.approx(0.47, abs=0.08)
