"""Sweeps as users run them: an answer's intervals hold the truth, or there is no answer."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.coverage import GRIDS, SCENARIOS, Scenario, Tally, probe, sweep_runs, usual
from isoloss.laws import (
    FitOptions,
    PredictionQuery,
    Refusal,
    RefusalReason,
    Refused,
    SurfaceLaw,
    fit_laws,
    predict,
)
from isoloss.laws.answer.expected_regret import expected_regret, too_vague
from isoloss.laws.answer.foundation import foundation
from isoloss.laws.estimates import Target
from isoloss.laws.surface.form_error import (
    Residuals,
    scatter,
    scatter_freedom,
    usual_scatter,
)
from isoloss.usual import FLAT_SCATTER
from tests.support.planted import Grid, Planted, planted_runs

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
OPTIONS = FitOptions(bootstrap_samples=60)


def runs_of(scenario: Scenario, grid: str, seed: int = 0):  # type: ignore[no-untyped-def]
    return sweep_runs(scenario, GRIDS[grid], np.random.default_rng([seed, 11]))


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("a inside the grid", 4),
        pytest.param("a inside the grid", 8, marks=pytest.mark.whole),
        pytest.param("g one diverged row", 8, marks=pytest.mark.whole),
        pytest.param("h 8 evaluations", 8, marks=pytest.mark.whole),
    ],
)
def test_intervals_hold_the_truth_over_seeds(name, seeds):
    pooled = Tally()
    for grid in ("two-3x3", "two-3x4"):
        for tally in probe(BY_NAME[name], GRIDS[grid], range(seeds), 60).values():
            pooled.rate_held += tally.rate_held
            pooled.batch_held += tally.batch_held
            pooled.seeds += tally.seeds
    assert pooled.answers == pooled.seeds
    assert np.mean(pooled.rate_held) >= 0.7
    assert np.mean(pooled.batch_held) >= 0.7


@pytest.mark.parametrize("grid", ["two-3x3", "two-3x4"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("b LR above the edge", "OptimumOnLearningRateEdge"),
        ("b LR below the edge", "OptimumOnLearningRateEdge"),
        ("c B below the edge", "OptimumOnBatchSizeEdge"),
    ],
)
def test_an_optimum_beyond_the_edge_is_refused_by_name(name, reason, grid):
    for seed in range(3):
        laws = fit_laws(runs_of(BY_NAME[name], grid, seed), OPTIONS)
        found = predict(laws, PredictionQuery(total_flops=1e20, params=1e9))
        assert isinstance(found, Refused)
        assert {r.figures["law_reason"] for r in found.refusals} == {reason}


def test_a_trend_over_sizes_needs_an_optimum_inside_at_two_of_them():
    """The smaller size's optimum lies far above the grid, the larger one's inside."""
    scenario = Scenario("one size outside", usual(rate_at=(5e-4, -0.9, 0.05)), 0.0005)
    laws = fit_laws(runs_of(scenario, "two-3x3"), OPTIONS)
    found = predict(laws, PredictionQuery(total_flops=1e20, params=1e9))
    assert isinstance(found, Refused)
    assert found.refusals[0].figures["law_reason"] == "OptimumOnLearningRateEdge"
    smaller = min(laws.data.sizes)
    assert (
        f"The best learning rate of {smaller:.3g} parameters is beyond"
        in found.refusals[0].message
    )
    assert "extend its grid to larger values" in found.refusals[0].message


def test_refused_fits_print_no_numpy_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for name in ("b LR above the edge", "c B below the edge", "d flat in B"):
            for seed in range(3):
                laws = fit_laws(runs_of(BY_NAME[name], "two-3x3", seed), OPTIONS)
                predict(laws, PredictionQuery(total_flops=1e20, params=1e9))


def test_an_answer_by_one_route_names_what_was_refused():
    laws = fit_laws(runs_of(BY_NAME["a inside the grid"], "three-4x4"), OPTIONS)
    assert foundation(laws, "surface") == ()
    refused = fit_laws([], OPTIONS).learning_rate
    (sentence,) = foundation(replace(laws, learning_rate=refused), "surface")
    assert "joint surface alone answers" in sentence
    assert "TooFewRuns: There are no runs." in sentence
    surface = replace(laws.surface, status="refused", refusal=refused.refusal)
    (sentence,) = foundation(replace(laws, surface=surface), "iso-loss")
    assert "iso-loss laws alone answer" in sentence


def test_two_sizes_do_not_show_their_scatter_and_the_answer_says_what_it_assumes():
    laws = fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    found = predict(laws, PredictionQuery(total_flops=1e20, params=1e9))
    (sentence,) = [w for w in found.warnings if "With 2 sizes" in w]
    assert "published sweeps" in sentence
    usual = np.sqrt(usual_scatter(laws.surface.curvature))
    at_least = np.exp(2 * np.linalg.norm(np.linalg.inv(laws.surface.curvature) * usual, axis=1))
    assert found.learning_rate.high / found.learning_rate.low > at_least[0]
    assert found.batch_size.high / found.batch_size.low > at_least[1]


def scatter_of(deviation: float, sizes: int, own_runs: float = 1.0) -> np.ndarray:
    """Found where cells' slopes deviate by a known amount, each seen through 25 noisy points."""
    rng = np.random.default_rng(0)
    logs = np.repeat(19.0 + np.arange(sizes), 4)
    cell = np.repeat(np.arange(len(logs)), 25)
    positions = rng.uniform(-1.0, 1.0, (len(cell), 2))
    slopes = deviation * rng.standard_normal((len(logs), 2))
    values = (positions * slopes[cell]).sum(1) + 0.02 * rng.standard_normal(len(cell))
    residuals = Residuals(positions, cell, values, np.ones(len(cell)), 0.02**2, own_runs)
    return scatter(residuals, logs.tolist(), np.zeros((2, 2)), 0).total


@pytest.mark.parametrize("deviation", [0.02, 0.055, 0.1, 0.3])
def test_the_scatter_of_cells_about_the_law_is_found(deviation):
    assert scatter_of(deviation, 8) == pytest.approx(deviation, rel=0.4)


def test_scatter_that_many_sizes_do_not_show_is_not_claimed():
    few, some, many = scatter_of(0.0, 2), scatter_of(0.0, 4), scatter_of(0.0, 20)
    assert np.all(many < some)
    assert np.all(some < few)
    assert np.all(few < FLAT_SCATTER)
    assert np.all(many < 0.4 * FLAT_SCATTER)


def test_evaluations_of_one_run_count_once_for_the_scatter():
    """What two sizes do not show is as usual; 8 evaluations of each run count as one."""
    assert np.all(scatter_of(0.0, 2, own_runs=0.125) > 0.9 * FLAT_SCATTER)
    assert scatter_freedom(2) < scatter_freedom(5)


def target(flops: float) -> Target:
    return Target(np.array([np.log(flops)]), np.log(1e9), np.log(flops / 6e9))


def test_an_answer_is_refused_for_the_tokens_it_would_waste_and_not_for_its_width():
    """The same errors cost ten times as much in a valley that is ten times as steep."""
    laws = fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    wide = replace(laws.surface, target_covariance=0.9**2 * np.eye(2))
    flat = replace(laws, surface=replace(wide, curvature=0.05 * np.eye(2)))
    steep = replace(laws, surface=replace(wide, curvature=0.5 * np.eye(2)))
    assert too_vague(expected_regret(flat, "surface", target(1e20))) is None
    refusal = too_vague(expected_regret(steep, "surface", target(1e20)))
    assert refusal.reason is RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE
    assert "of the tokens" in refusal.message
    assert refusal.figures["expected_regret"] > 0


@pytest.mark.parametrize("quantity", ["learning_rate", "batch_size"])
def test_an_answer_that_could_be_nearly_any_value_is_refused_however_little_it_wastes(quantity):
    """Where chance alone makes a valley, its bottom may be anywhere and nothing is lost there."""
    laws = fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    flat, wide = 0.3 * np.eye(2), np.zeros((2, 2))
    at = ["learning_rate", "batch_size"].index(quantity)
    flat[at, at], wide[at, at] = 0.002, 3.0**2
    unseen = replace(laws, surface=replace(laws.surface, curvature=flat, target_covariance=wide))
    regret = expected_regret(unseen, "surface", target(1e20))
    assert regret.tokens < 0.1
    refusal = too_vague(regret)
    assert refusal.reason is RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE
    assert refusal.figures["quantity"] == quantity
    assert f"{quantity.replace('_', ' ')} makes no visible difference" in refusal.message
    assert too_vague(expected_regret(laws, "surface", target(1e20))) is None


@pytest.mark.parametrize("seed", [1, 16])
def test_learning_rates_without_any_effect_are_not_answered_with_any_value(seed):
    """Of 20 such sweeps the two in which chance makes a valley."""
    flat, grid = replace(Planted(), curvature=(1e-6, 0.0, 0.3)), Grid(rates=5, batches=5)
    laws = fit_laws(planted_runs(flat, grid, np.random.default_rng(seed), 0.0007, 0.004), OPTIONS)
    found = predict(laws, PredictionQuery(total_flops=1e20, params=1e9))
    tried = max(laws.data.learning_rates) / min(laws.data.learning_rates)
    if isinstance(found, Refused):
        assert "makes no visible difference" in found.refusals[0].message
    else:
        assert found.learning_rate.high / found.learning_rate.low < 30 * tried


def test_whether_an_answer_is_too_vague_does_not_depend_on_the_seed():
    runs = runs_of(BY_NAME["e noise 3 x"], "two-3x3")
    costs = set()
    for seed in range(5):
        laws = fit_laws(runs, replace(OPTIONS, seed=seed))
        for route in ("surface", "iso-loss"):
            costs.add((route, expected_regret(laws, route, target(1e21)).tokens))
    assert len(costs) == 2


def test_iso_loss_laws_do_not_answer_where_all_runs_together_show_no_optimum():
    laws = fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    edge = Refusal(RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE, "beyond 256", {"edge": 256.0})
    laws = replace(laws, surface=SurfaceLaw("refused", refusal=edge))
    found = predict(laws, PredictionQuery(total_flops=1e20, params=1e9))
    assert isinstance(found, Refused)
    assert found.refusals[0].figures["law_reason"] == "OptimumOnBatchSizeEdge"
