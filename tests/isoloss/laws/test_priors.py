"""What published sweeps say is usual holds where a sweep tells nothing, and gives way to what it tells."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.science.cases import planted_case
from benchmarks.science.shapes import MANY, SMALL, TWO, WIDE, Layout, PlantedJudge, surface
from isoloss.laws import FitOptions, Laws, PredictionQuery, fit_laws, predict
from isoloss.laws.data.cells import make_cells
from isoloss.laws.data.trajectories import collect
from isoloss.laws.least_squares import Levelled
from isoloss.laws.quantiles import student_quantiles
from isoloss.laws.surface.form_error import (
    Residuals,
    exponent_scatter,
    usual_end,
)
from isoloss.laws.surface.joint_fit import SurfaceFit, fit_surface
from isoloss.laws.surface.scale import APART, LEVEL, PRIOR_SCALE, effective_variance
from isoloss.laws.surface.skew import Points, shown_asymmetry
from isoloss.laws.surface.terms import Shape
from isoloss.usual import EXPONENT_SCATTER

ONE = np.ones(2)
KNOWN = 4.0


def effective(squares: float, noise: float, seen: float) -> float:
    """Effective standard deviation of both hyperparameters, in usual ones."""
    found = effective_variance(squares * ONE, noise * ONE, ONE, seen, KNOWN)
    assert found[0] == pytest.approx(found[1])
    return float(np.sqrt(found[0]))


def test_a_sweep_that_tells_nothing_scatters_as_usual() -> None:
    assert effective(0.0, 0.0, 0.0) == pytest.approx(1.0, abs=0.2)
    assert effective(25.0, 25.0, 1.0) == pytest.approx(effective(0.0, 0.0, 0.0), rel=0.15)


def test_one_group_too_many_is_enough_to_believe_a_law() -> None:
    """Pooling its square with a usual one of three degrees of freedom would leave 0.87."""
    assert effective(0.01, 0.01, 1.0) < 0.35
    assert effective(0.01, 0.01, 3.0) < 0.15


def test_scatter_as_usual_or_larger_is_kept() -> None:
    assert effective(1.0, 0.04, 3.0) == pytest.approx(1.0, abs=0.15)
    assert effective(9.0, 0.04, 6.0) == pytest.approx(3.0, rel=0.25)


def test_one_hyperparameter_that_follows_its_law_speaks_for_the_other_in_part() -> None:
    alone, noisy = effective(4.0, 4.0, 2.0), np.array([0.01, 4.0])
    rate, batch = np.sqrt(effective_variance(noisy, noisy, ONE, 2.0, KNOWN))
    assert rate < 0.2
    assert 1.2 * rate < batch < 0.5 * alone


@pytest.mark.parametrize(("groups", "noise"), [(0, 0.3), (1, 0.1), (2, 0.3), (4, 1.0)])
def test_the_stated_share_of_effects_is_held_over_sweeps_like_the_prior(
    groups: int, noise: float
) -> None:
    rng = np.random.default_rng(0)
    student = student_quantiles(KNOWN, np.array([0.5 + LEVEL / 2]))[0]
    held = []
    for _ in range(1500):
        shared = PRIOR_SCALE * abs(rng.standard_normal())
        scales = shared * np.exp(APART * rng.standard_normal(2))
        seen = scales * rng.standard_normal((max(groups, 1), 2))
        seen += noise * rng.standard_normal(seen.shape)
        squares = (seen**2).mean(axis=0)
        found = effective_variance(squares, noise**2 * ONE, ONE, float(groups), KNOWN)
        held += list(np.abs(scales * rng.standard_normal(2)) < student * np.sqrt(found))
    assert np.mean(held) == pytest.approx(LEVEL, abs=0.03)


def growing(slopes_per_log_tokens: np.ndarray, own_runs: float = 0.1) -> np.ndarray:
    """Scatter of exponents of D found where sizes' slopes over ln LR and ln B grow by (sizes, 2)."""
    rng = np.random.default_rng(1)
    sizes = 19.0 + np.arange(len(slopes_per_log_tokens))
    cell = np.repeat(np.arange(4 * len(sizes)), 16)
    positions = rng.uniform(-1.0, 1.0, (len(cell), 2))
    past_end = (cell % 4 - 3.0) * 0.5
    growth = slopes_per_log_tokens[cell // 4]
    values = past_end * (positions * growth).sum(axis=1) + 1e-4 * rng.standard_normal(len(cell))
    residuals = Residuals(positions, cell, values, np.ones(len(cell)), 1e-8, own_runs)
    return exponent_scatter(residuals, np.repeat(sizes, 4).tolist(), np.eye(2), past_end)


def test_exponents_of_tokens_that_agree_are_believed_and_others_are_not() -> None:
    alike, apart = np.zeros((3, 2)), 3.0 * EXPONENT_SCATTER * np.array([[-1.0], [0.0], [1.0]])
    assert np.all(growing(alike) < 0.2 * EXPONENT_SCATTER)
    assert np.all(growing(apart) > 2.0 * EXPONENT_SCATTER)


def test_cells_with_runs_of_their_own_show_exponents_as_scatter_of_cells() -> None:
    assert growing(np.zeros((3, 2)), own_runs=1.0) == pytest.approx(np.zeros(2))


def test_the_usual_end_of_runs_follows_sizes_between_equal_tokens_and_equal_ratios() -> None:
    sizes = np.repeat([0.0, 1.0, 2.0], 2)
    ends = np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    assert usual_end(sizes, ends) == pytest.approx((1.0, 0.0))
    assert usual_end(sizes, ends + 0.5 * sizes) == pytest.approx((1.0, 0.5))
    assert usual_end(sizes, ends + 3.0 * sizes)[1] == 1.0
    assert usual_end(sizes, ends - 3.0 * sizes)[1] == 0.0
    assert usual_end(np.zeros(2), np.array([0.0, 1.0])) == pytest.approx((1.0, 0.0))


THIRD = 0.4
"""Planted third derivative over ln LR, of a curvature of 1."""
USUAL = np.array([0.09])


Sample = tuple[Points, Levelled, np.ndarray, np.ndarray, np.ndarray]
"""Points, their cells and weights, values, runs and u^3 / 6."""


def sample(moves: float, third: float = THIRD, run_error: float = 0.05) -> Sample:
    """3 x 3 runs of two sizes, seen at 6 token counts between which the optimum moves by `moves`."""
    rng = np.random.default_rng(2)
    size, cut, i, j = (a.ravel() for a in np.indices((2, 6, 3, 3)))
    x, y = 0.7 * (i - 1.0), 0.7 * (j - 1.0)
    u = x - moves * (cut / 5.0 - 0.5)
    runs = (size * 9 + i * 3 + j).astype(np.intp)
    values = 0.5 * u**2 + 0.5 * y**2 + third * u**3 / 6 + run_error * rng.standard_normal(18)[runs]
    values = values + 0.002 * rng.standard_normal(len(values)) + 0.3 * size * x
    cell = (size * 6 + cut).astype(np.intp)
    points = Points(x, y, size.astype(float), cut.astype(float))
    return points, Levelled(cell, np.ones(len(x))), values, runs, (u**3 / 6)[:, None]


def test_an_optimum_that_moves_through_three_values_shows_asymmetry() -> None:
    """What whole runs share, and a gradient of each size's own, are no asymmetry."""
    mean, covariance = shown_asymmetry(*sample(1.2), USUAL)
    assert np.sqrt(covariance[0, 0]) < 0.2 * THIRD
    assert mean[0] == pytest.approx(THIRD, abs=2.5 * np.sqrt(covariance[0, 0]))
    mean, covariance = shown_asymmetry(*sample(1.2, third=0.0), USUAL)
    assert abs(mean[0]) < 2.5 * np.sqrt(covariance[0, 0])


def by_generalised_least_squares(shown: Sample, covariance: np.ndarray) -> np.ndarray:
    """The cubic coefficients by a column for every level, gradient and curvature, errors having this covariance."""
    (x, y, _, _), cells, values, _, cubic = shown
    planes = [
        np.where(cells.group == c, v, 0.0) for c in np.unique(cells.group) for v in (1.0, x, y)
    ]
    design = np.column_stack([cubic, 0.5 * x**2, x * y, 0.5 * y**2, *planes])
    inverse = np.linalg.inv(covariance)
    normal = np.linalg.pinv(design.T @ inverse @ design, rcond=1e-12)
    return np.asarray((normal @ design.T @ inverse @ values)[:1])


def test_without_a_prior_it_is_what_a_column_for_every_plane_would_give() -> None:
    """Points of equal weight; the noise as the sample was drawn, near what is estimated from it."""
    shown = sample(1.2)
    mean, _ = shown_asymmetry(*shown, np.array([1e6]))
    runs = shown[3]
    errors = 0.002**2 * np.eye(len(runs)) + 0.05**2 * (runs[:, None] == runs)
    assert mean == pytest.approx(by_generalised_least_squares(shown, errors), rel=1e-3)


def test_three_values_about_an_optimum_that_stays_leave_asymmetry_as_usual() -> None:
    mean, covariance = shown_asymmetry(*sample(0.0), USUAL)
    assert covariance[0, 0] == pytest.approx(USUAL[0], rel=1e-6)
    assert mean[0] == pytest.approx(0.0, abs=1e-6)


def test_too_few_runs_to_know_their_noise_leave_asymmetry_as_usual() -> None:
    points, cells, values, runs, cubic = sample(1.2)
    few = np.isin(runs, [0, 1, 3, 4, 9, 10, 12, 13])
    left = Points(*(each[few] for each in points)), Levelled(*(each[few] for each in cells))
    mean, covariance = shown_asymmetry(*left, values[few], runs[few], cubic[few], USUAL)
    assert (mean[0], covariance[0, 0]) == (0.0, USUAL[0])


def surface_of(shape: str, layout: Layout, seed: int = 0) -> SurfaceFit:
    trajectories = collect(planted_case(shape, layout, seed).runs).trajectories
    fit = fit_surface(trajectories, make_cells(trajectories))
    assert isinstance(fit, SurfaceFit)
    return fit


def test_a_symmetric_valley_that_runs_show_carries_little_doubt_about_its_asymmetry() -> None:
    """In ln x of the optimum in mid-data; 0.06 and 0.07 where asymmetry were as usual."""
    for seed in range(3):
        fit = surface_of("exact", SMALL, seed)
        turn = np.linalg.inv(fit.hessian)
        at = [Shape.X, Shape.Y]
        errors = np.sqrt(np.diag(turn @ fit.unseen_asymmetry[np.ix_(at, at)] @ turn))
        assert np.all(errors < 0.05)


@cache
def laws_of(shape: str, layout: Layout, seed: int) -> Laws:
    return fit_laws(planted_case(shape, layout, seed).runs, FitOptions(bootstrap_samples=100))


def widths(shape: str, layout: Layout, seeds: int, beyond: float = 1.0) -> tuple[float, float]:
    """(share of ln LR and ln B held, median half width of the intervals, ln) at `beyond` times the largest size."""
    held, wide = [], []
    for seed in range(seeds):
        n, d = beyond * layout.sizes[-1], layout.tokens[-1]
        truth = PlantedJudge(surface(shape, seed), n, d)
        question = PredictionQuery(total_flops=6 * n * d, params=n)
        found = predict(laws_of(shape, layout, seed), question)
        for interval, at in zip(
            (found.learning_rate, found.batch_size), np.exp(truth.vertex), strict=True
        ):
            held.append(interval.low <= at <= interval.high)
            wide.append(0.5 * np.log(interval.high / interval.low))
    return float(np.mean(held)), float(np.median(wide))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [4, pytest.param(8, marks=pytest.mark.whole)])
def test_laws_that_sizes_follow_exactly_get_narrow_intervals_and_others_do_not(seeds: int) -> None:
    """From two sizes nobody can tell; from five it is plain."""
    held, exact = widths("exact", MANY, seeds)
    assert held >= 0.75
    assert exact < 0.03
    held, scattered = widths("scattered", MANY, seeds)
    assert held >= 0.7
    assert scattered > 3.0 * exact
    _, three = widths("exact", WIDE, seeds)
    _, two = widths("exact", TWO, seeds)
    assert exact < three < two


@pytest.mark.slow
def test_beyond_the_sizes_an_exact_law_gets_wider_intervals_as_it_may_bend_there() -> None:
    """By less from five sizes than from three, which leave more room for it."""
    five = [widths("exact", MANY, 4, beyond)[1] for beyond in (1.0, 2.5, 10.0)]
    three = [widths("exact", WIDE, 4, beyond)[1] for beyond in (1.0, 2.5, 10.0)]
    assert five[0] < 0.03
    assert five[1] > 2.0 * five[0]
    assert five[2] > 2.0 * five[1]
    assert three[1] > 1.3 * five[1]
    assert three[2] > 1.3 * five[2]


def test_the_prior_for_a_sweep_does_not_depend_on_the_order_of_its_runs() -> None:
    case = planted_case("scattered", WIDE, 1)
    shuffled = replace(case, runs=case.runs[::-1])
    found = [
        fit_laws(c.runs, FitOptions(bootstrap_samples=20)).surface.target_covariance
        for c in (case, shuffled)
    ]
    assert found[0] == pytest.approx(found[1])
