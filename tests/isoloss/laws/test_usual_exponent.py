"""The exponent of tokens that batch sizes follow: as published where a sweep leaves it open, the sweep's own elsewhere."""

import numpy as np
import pytest

from isoloss.laws import FitOptions, fit_laws
from isoloss.laws.surface.terms import LawTerm
from isoloss.laws.surface.usual_exponent import UsualExponent
from isoloss.usual import BATCH_EXPONENT_ERROR, USUAL_BATCH_EXPONENT
from tests.support.planted import Grid, Planted, planted_runs

AT = LawTerm.BATCH_OF_TOKENS
FITTED = np.array([-7.0, -0.5, 0.15, 4.8, -0.1, 1.2])


def covariance(of_exponent: float, *, with_rate: float = 0.0) -> np.ndarray:
    """Of a law whose exponent has this variance, and this covariance with that of the learning rate."""
    found = np.diag([0.01, 0.01, 0.04, 0.01, 0.01, of_exponent])
    found[AT, LawTerm.RATE_OF_TOKENS] = found[LawTerm.RATE_OF_TOKENS, AT] = with_rate
    return found


def test_an_exponent_that_is_known_stays_and_one_that_is_open_becomes_the_usual_one() -> None:
    assert UsualExponent(covariance(0.0)).law(FITTED) == pytest.approx(FITTED)
    found = UsualExponent(covariance(1e6)).law(FITTED)
    assert found[AT] == pytest.approx(USUAL_BATCH_EXPONENT, abs=1e-4)
    others = np.arange(6) != AT
    assert found[others] == pytest.approx(FITTED[others])


def test_both_count_by_how_well_they_are_known() -> None:
    usual = UsualExponent(covariance(BATCH_EXPONENT_ERROR**2))
    assert usual.law(FITTED)[AT] == pytest.approx((1.2 + USUAL_BATCH_EXPONENT) / 2)
    assert usual.covariance_after()[AT, AT] == pytest.approx(BATCH_EXPONENT_ERROR**2 / 2)


def test_the_learning_rate_moves_along_the_ridge() -> None:
    found = UsualExponent(covariance(0.25, with_rate=0.05)).law(FITTED)
    moved = found[[LawTerm.RATE_OF_TOKENS, AT]] - FITTED[[LawTerm.RATE_OF_TOKENS, AT]]
    assert moved[0] / moved[1] == pytest.approx(0.05 / 0.25)


def test_draws_scatter_as_both_are_uncertain() -> None:
    rng = np.random.default_rng(0)
    known = covariance(0.04, with_rate=0.01)
    usual = UsualExponent(known)
    draws = FITTED + rng.multivariate_normal(np.zeros(6), known, 40_000)
    found = np.cov(usual.law(draws, rng.standard_normal(len(draws))).T)
    assert found == pytest.approx(usual.covariance_after(), abs=1e-3)


def exponent_of_batch(exponent: float, seen_from: float, noise: float, seed: int) -> float:
    """As fitted to runs that show it between `seen_from` and all of their tokens."""
    surface = Planted(batch_at=(128.0, -0.05, exponent))
    grid = Grid(seen_from=seen_from)
    runs = planted_runs(surface, grid, np.random.default_rng(seed), noise, noise)
    laws = fit_laws(runs, FitOptions(bootstrap_samples=20))
    return laws.surface.planes.batch_size.of_tokens


@pytest.mark.parametrize("exponent", [0.2, 0.8])
def test_a_sweep_that_shows_an_unusual_exponent_keeps_most_of_it(exponent: float) -> None:
    found = exponent_of_batch(exponent, 0.02, 0.0002, 0)
    assert abs(found - exponent) < 0.3 * abs(USUAL_BATCH_EXPONENT - exponent)


def test_noisy_runs_over_few_tokens_do_not_make_up_an_exponent() -> None:
    """By least squares alone one of these ten sweeps finds an exponent of 0.98."""
    found = [exponent_of_batch(0.45, 0.5, 0.004, seed) for seed in range(10)]
    assert np.std(found) < 0.12
    assert np.mean(found) == pytest.approx(0.47, abs=0.08)
