"""Sweeps as users run them: an answer's intervals hold the truth, or there is no answer."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import coverage
from isoloss import laws as engine
from isoloss.laws.answer.optimum import Optimum, best_pair, too_vague
from isoloss.laws.answer.question import Question, resolve
from isoloss.usual import (
    FLATTENS,
    MEAN_CURVATURE_SHARE,
    STEEP_SCATTER,
    USUAL_SIZE_CURVATURE,
    USUAL_TOKEN_CURVATURE,
)
from tests.support.synthetic import Deviating, Grid, Synthetic, synthetic_runs
from tests.support.synthetic_runs import refusal_of

BY_NAME = {scenario.name: scenario for scenario in coverage.SCENARIOS}
OPTIONS = engine.FitOptions(bootstrap_samples=60)


def runs_of(scenario: coverage.Scenario, grid: str, seed: int = 0):  # type: ignore[no-untyped-def]
    return coverage.sweep_runs(scenario, coverage.GRIDS[grid], np.random.default_rng([seed, 11]))


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
    pooled = coverage.Tally()
    for grid in ("two-3x3", "two-3x4"):
        for tally in coverage.probe(
            BY_NAME[name], coverage.GRIDS[grid], range(seeds), 60
        ).values():
            pooled.rate_held += tally.rate_held
            pooled.batch_held += tally.batch_held
            pooled.seeds += tally.seeds
    assert pooled.answers == pooled.seeds
    assert np.mean(pooled.rate_held) >= 0.7
    assert np.mean(pooled.batch_held) >= 0.7


@pytest.mark.parametrize("seed", [14, 60, 77])
def test_an_optimum_far_beyond_the_edge_is_refused_where_runs_hardly_show_the_curvature(seed):
    """Noise makes the valley seem twice as steep, and its optimum near: such answers lost 0.008 to 0.017 nats."""
    scenario = BY_NAME["b LR below the edge"]
    scenario = replace(scenario, surface=Deviating(scenario.surface, seed))
    laws = engine.fit_laws(runs_of(scenario, "two-3x3", seed), OPTIONS)
    found = refusal_of(laws, engine.PredictionQuery(total_flops=1e20, params=1e9))
    assert {r.figures["law_reason"] for r in found.refusals} == {"OptimumOnLearningRateEdge"}


def test_a_trend_over_sizes_needs_an_optimum_inside_at_two_of_them():
    """The smaller size's optimum lies far above the grid, the larger one's inside."""
    scenario = coverage.Scenario(
        "one size outside", coverage.usual(rate_at=(5e-4, -0.9, 0.05)), 0.0005
    )
    laws = engine.fit_laws(runs_of(scenario, "two-3x3"), OPTIONS)
    found = refusal_of(laws, engine.PredictionQuery(total_flops=1e20, params=1e9))
    assert found.refusals[0].figures["law_reason"] == "OptimumOnLearningRateEdge"
    smaller = min(laws.data.sizes)
    assert (
        f"The best learning rate of {smaller:.3g} parameters is beyond"
        in found.refusals[0].message
    )
    assert "extend that grid to larger values" in found.refusals[0].message


def test_refused_fits_print_no_numpy_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for name in ("b LR above the edge", "c B below the edge", "d flat in B"):
            for seed in range(3):
                laws = engine.fit_laws(runs_of(BY_NAME[name], "two-3x3", seed), OPTIONS)
                engine.predict(laws, engine.PredictionQuery(total_flops=1e20, params=1e9))


def test_two_sizes_do_not_show_their_scatter_and_the_answer_says_what_it_assumes():
    laws = engine.fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    found = engine.predict(laws, engine.PredictionQuery(total_flops=1e20, params=1e9))
    (sentence,) = [w for w in found.warnings if "With 2 sizes" in w]
    assert "published sweeps" in sentence
    at_least = np.exp(2 * STEEP_SCATTER)
    assert found.learning_rate.high / found.learning_rate.low > at_least
    assert found.batch_size.high / found.batch_size.low > at_least


def asked(laws: engine.Laws, flops: float = 1e20) -> tuple[Question, Optimum]:
    question = resolve(laws, engine.PredictionQuery(total_flops=flops, params=1e9))
    assert isinstance(question, Question)
    found = best_pair(laws, question)
    assert found is not None
    return question, found


def slope_at(laws: engine.Laws, flops: float) -> float:
    """-dL/dlnC of the loss-compute law, nats."""
    curve, step = laws.loss_compute.curve, 1e-4
    return float(curve.loss(np.log(flops) - step) - curve.loss(np.log(flops) + step)) / (2 * step)


def with_noise(surface: engine.SurfaceLaw, variances: tuple[float, float]) -> engine.SurfaceLaw:
    """Whose noise leaves the constants of ln LR and ln B open with these variances."""
    noise = np.diag([variances[0], 0.0, 0.0, variances[1], 0.0, 0.0])
    return replace(surface, error=replace(surface.error, noise=noise))


def test_an_answer_is_refused_for_the_tokens_its_noise_would_waste_and_not_for_its_width():
    """The same errors cost ten times as much in a valley that is ten times as steep."""
    laws = engine.fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    wide = with_noise(laws.surface, (0.9**2, 0.9**2))
    flat = replace(laws, surface=replace(wide, curvature=0.05 * np.eye(2)))
    steep = replace(laws, surface=replace(wide, curvature=0.5 * np.eye(2)))
    assert too_vague(flat, *asked(flat)) is None
    refusal = too_vague(steep, *asked(steep))
    assert refusal.reason is engine.RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE
    assert "of the tokens" in refusal.message
    assert refusal.figures["expected_regret"] > 0


def test_what_is_taken_as_usual_widens_an_answer_and_refuses_none():
    laws = engine.fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    error = replace(laws.surface.error, scatter=2.0**2 * np.eye(2))
    unsure = replace(laws, surface=replace(laws.surface, error=error, curvature=np.eye(2)))
    question, found = asked(unsure)
    assert found.point.learning_rate.high > 50 * found.point.learning_rate.low
    assert too_vague(unsure, question, found) is None


def test_the_expected_regret_of_an_answer_is_told_in_nats_and_as_compute():
    laws = engine.fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    found = engine.predict(laws, engine.PredictionQuery(total_flops=1e20, params=1e9))
    wasted = 0.5 * np.trace(laws.surface.curvature @ asked(laws)[1].mean_error)
    assert found.expected_regret == pytest.approx(wasted * slope_at(laws, 1e20))
    assert found.expected_regret_flops == pytest.approx(wasted * 1e20)
    curve, more = laws.loss_compute.curve, np.log1p(found.expected_regret_flops / 1e20)
    gained = curve.loss(np.log(1e20)) - curve.loss(np.log(1e20) + more)
    assert gained == pytest.approx(found.expected_regret, rel=0.05)


def test_without_a_loss_compute_law_as_many_more_tokens_make_up_for_what_an_answer_loses():
    laws = engine.fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    laws = replace(laws, loss_compute=replace(laws.loss_compute, gamma=None))
    assert laws.loss_compute.curve is None
    found = engine.predict(laws, engine.PredictionQuery(total_flops=1e20, params=1e9))
    wasted = 0.5 * np.trace(laws.surface.curvature @ asked(laws)[1].mean_error)
    assert found.expected_regret_flops == pytest.approx(wasted * 1e20)
    tokens = 1e20 / (laws.surface.flops_per_token_per_param * 1e9)
    flatter = (tokens / laws.data.largest_tokens) ** -FLATTENS
    expected = wasted * laws.surface.token_slope * flatter
    assert found.expected_regret == pytest.approx(expected)


def test_what_an_answer_is_expected_to_waste_has_an_eighth_of_the_curvatures_that_its_interval_has():
    """With all of it answers by designs of `isoloss init` were told seven times what they lost."""
    laws = engine.fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    usual = np.repeat([USUAL_SIZE_CURVATURE, USUAL_TOKEN_CURVATURE], 2) ** 2
    unshown = replace(laws.surface.error, moments=np.diag([*[1e-4] * 6, *usual]))
    found = np.diag(unshown.in_the_mean.moments)
    assert found[:6] == pytest.approx(1e-4)
    assert found[6:] == pytest.approx(MEAN_CURVATURE_SHARE * usual)
    shown = replace(unshown, moments=np.diag([*[1e-4] * 6, *(1e-4 * usual)]))
    assert np.diag(shown.in_the_mean.moments)[6:] == pytest.approx(1e-4 * usual, rel=1e-3)


def test_the_expected_regret_of_a_continued_run_counts_how_far_its_rule_may_be_off():
    """It was told of the laws' errors alone, a quarter of what the intervals beside it meant."""
    laws = engine.fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    loss = float(laws.loss_compute.curve.loss(np.log(1e20)))
    query = engine.PredictionQuery(
        initial_loss=loss, cpt_flops=1e20, params=1e9, composition_error=(0.0, 0.0)
    )
    exact = engine.predict(laws, query)
    for batch_size, errors in ((None, (0.3, 0.5)), (exact.batch_size.value, (0.3, 0.0))):
        known, unsure = (
            engine.predict(laws, replace(query, batch_size=batch_size, composition_error=error))
            for error in ((0.0, 0.0), (0.3, 0.5))
        )
        curvature = (
            np.diag(laws.surface.curvature)
            if batch_size is None
            else [laws.rate_at_batch.curvature, 0.0]
        )
        more = 0.5 * np.dot(curvature, np.square(errors)) * slope_at(laws, exact.total_flops.value)
        assert unsure.expected_regret == pytest.approx(known.expected_regret + more)


@pytest.mark.parametrize("quantity", ["learning_rate", "batch_size"])
def test_an_answer_that_could_be_nearly_any_value_is_refused_however_little_it_wastes(quantity):
    """Where chance alone makes a valley, its bottom may be anywhere and nothing is lost there."""
    laws = engine.fit_laws(runs_of(BY_NAME["a inside the grid"], "two-3x3"), OPTIONS)
    at = ["learning_rate", "batch_size"].index(quantity)
    flat, variances = 0.3 * np.eye(2), [0.0, 0.0]
    flat[at, at], variances[at] = 0.002, 3.0**2
    surface = with_noise(laws.surface, tuple(variances))
    unseen = replace(laws, surface=replace(surface, curvature=flat))
    refusal = too_vague(unseen, *asked(unseen))
    assert refusal.reason is engine.RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE
    assert refusal.figures["quantity"] == quantity
    assert f"{quantity.replace('_', ' ')} makes no visible difference" in refusal.message
    assert too_vague(laws, *asked(laws)) is None


@pytest.mark.parametrize("seed", [1, 16])
def test_learning_rates_without_any_effect_are_not_answered_with_any_value(seed):
    """Of 20 such sweeps the two in which chance makes a valley."""
    flat, grid = replace(Synthetic(), curvature=(1e-6, 0.0, 0.3)), Grid(rates=5, batches=5)
    laws = engine.fit_laws(
        synthetic_runs(flat, grid, np.random.default_rng(seed), 0.0007, 0.004), OPTIONS
    )
    found = engine.predict(laws, engine.PredictionQuery(total_flops=1e20, params=1e9))
    tried = max(laws.data.learning_rates) / min(laws.data.learning_rates)
    if isinstance(found, engine.Refused):
        assert "makes no visible difference" in found.refusals[0].message
    else:
        assert found.learning_rate.high / found.learning_rate.low < 30 * tried


def test_whether_an_answer_is_too_vague_does_not_depend_on_the_seed():
    runs = runs_of(BY_NAME["e noise 3 x"], "two-3x3")
    costs = set()
    for seed in range(3):
        laws = engine.fit_laws(runs, replace(OPTIONS, seed=seed))
        costs.add(float(np.trace(asked(laws, 1e21)[1].noise)))
    assert len(costs) == 1
