"""The exponents that batch sizes follow: as published where a sweep leaves them open, the sweep's own elsewhere."""

import numpy as np
import pytest

from isoloss.laws import FitOptions, fit_laws
from isoloss.laws.surface.terms import LawTerm
from isoloss.laws.surface.uncertainty import OBSERVED, UsualExponents
from isoloss.usual import BATCH_EXPONENT_ERRORS, USUAL_BATCH_EXPONENTS
from tests.support.planted import Grid, Planted, planted_runs

OF_PARAMS, OF_TOKENS = LawTerm.BATCH_OF_PARAMS, LawTerm.BATCH_OF_TOKENS
USUAL = dict(zip(OBSERVED, USUAL_BATCH_EXPONENTS, strict=True))
ERRORS = dict(zip(OBSERVED, BATCH_EXPONENT_ERRORS, strict=True))
FITTED = np.array([-7.0, -0.5, 0.15, 4.8, -0.9, 1.2])

both_exponents = pytest.mark.parametrize("at", OBSERVED, ids=["of params", "of tokens"])


def covariance(at: LawTerm, of_exponent: float, *, with_rate: float = 0.0) -> np.ndarray:
    """Of a law whose one exponent has this variance, and this covariance with the level of the learning rate."""
    found = np.diag([0.02, 0.01, 0.01, 0.01, 0.0, 0.0])
    found[at, at] = of_exponent
    found[at, LawTerm.RATE] = found[LawTerm.RATE, at] = with_rate
    return found


@both_exponents
def test_an_exponent_that_is_known_stays_and_one_that_is_open_becomes_the_usual_one(
    at: LawTerm,
) -> None:
    assert UsualExponents(covariance(at, 0.0)).law(FITTED) == pytest.approx(FITTED)
    found = UsualExponents(covariance(at, 1e6)).law(FITTED)
    assert found[at] == pytest.approx(USUAL[at], abs=1e-4)
    others = np.arange(6) != at
    assert found[others] == pytest.approx(FITTED[others])


@both_exponents
def test_both_count_by_how_well_they_are_known(at: LawTerm) -> None:
    known = covariance(at, ERRORS[at] ** 2)
    usual = UsualExponents(known)
    assert usual.law(FITTED)[at] == pytest.approx((FITTED[at] + USUAL[at]) / 2)
    assert usual.covariance_after(known)[at, at] == pytest.approx(ERRORS[at] ** 2 / 2)


@both_exponents
def test_the_learning_rate_moves_along_the_ridge(at: LawTerm) -> None:
    found = UsualExponents(covariance(at, 0.25, with_rate=0.05)).law(FITTED)
    moved = found[[LawTerm.RATE, at]] - FITTED[[LawTerm.RATE, at]]
    assert moved[0] / moved[1] == pytest.approx(0.05 / 0.25)


def test_draws_scatter_as_both_are_uncertain() -> None:
    """Also where the law's own errors are others than those that it was weighed by."""
    rng = np.random.default_rng(0)
    weighed_by = covariance(OF_TOKENS, 0.04, with_rate=0.01)
    weighed_by += covariance(OF_PARAMS, 0.06, with_rate=0.02)
    usual = UsualExponents(weighed_by)
    for known in (weighed_by, 0.5 * weighed_by + 0.002):
        draws = FITTED + rng.multivariate_normal(np.zeros(6), known, 40_000)
        found = np.cov(usual.law(draws, rng.standard_normal((len(draws), 2))).T)
        assert found == pytest.approx(usual.covariance_after(known), abs=1e-3)


def exponents_of_batch(surface: Planted, grid: Grid, noise: float, seed: int) -> tuple[float, ...]:
    """Of N and D, as fitted."""
    runs = planted_runs(surface, grid, np.random.default_rng(seed), noise, noise)
    fitted = fit_laws(runs, FitOptions(bootstrap_samples=20)).surface.planes
    return fitted.batch_size.of_params, fitted.batch_size.of_tokens


@pytest.mark.parametrize("exponent", [0.2, 0.8])
def test_a_sweep_that_shows_an_unusual_exponent_of_tokens_keeps_most_of_it(
    exponent: float,
) -> None:
    surface = Planted(batch_at=(128.0, -0.05, exponent))
    _, found = exponents_of_batch(surface, Grid(seen_from=0.02), 0.0002, 0)
    assert abs(found - exponent) < 0.3 * abs(USUAL[OF_TOKENS] - exponent)


@pytest.mark.parametrize("exponent", [-0.7, 0.4])
def test_a_sweep_that_shows_an_unusual_exponent_of_sizes_keeps_most_of_it(exponent: float) -> None:
    surface = Planted(batch_at=(128.0, exponent, 0.45))
    found, _ = exponents_of_batch(surface, Grid(seen_from=0.02), 0.0002, 0)
    assert abs(found - exponent) < 0.2 * abs(USUAL[OF_PARAMS] - exponent)


def test_noisy_runs_over_few_tokens_do_not_make_up_an_exponent() -> None:
    """By least squares alone one of these ten sweeps finds an exponent of 0.98."""
    surface = Planted(batch_at=(128.0, -0.05, 0.45))
    found = [
        exponents_of_batch(surface, Grid(seen_from=0.5), 0.004, seed)[1] for seed in range(10)
    ]
    assert np.std(found) < 0.12
    assert np.mean(found) == pytest.approx(0.47, abs=0.08)
