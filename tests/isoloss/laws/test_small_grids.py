"""Three by three grids around the optimum at the end of training are enough."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.science.cases import synthetic_case
from benchmarks.science.shapes import SMALL, Layout, surface
from isoloss import datasets
from isoloss.laws import (
    FitOptions,
    Prediction,
    PredictionQuery,
    RefusalReason,
    Run,
    fit_laws,
    predict,
)
from isoloss.laws.iso_loss.envelope import BEST_RUNS
from isoloss.laws.model import NO_MINIMUM
from tests.support.synthetic import Grid, Synthetic, synthetic_runs

OPTIONS = FitOptions(bootstrap_samples=60)


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_of_early_cells_may_be_outside_the_grid(seed):
    """The best batch size grows fourfold along a run; only its end must be inside."""
    case = synthetic_case("exact", SMALL, seed)
    laws = fit_laws(case.runs, OPTIONS)
    assert laws.surface.refusal is None
    for n, d, truth in case.targets:
        found = predict(laws, PredictionQuery(total_flops=6 * n * d, params=n))
        assert isinstance(found, Prediction)
        assert truth.regret(found.learning_rate.value, found.batch_size_raw) < 0.001


ENDS = (1e8, 2e8, 4e8), (8e9, 1.2e10, 2e10)
"""Sizes and their tokens."""


def sweep(truth: Synthetic, seed: int, shift=(0.0, 0.0)):
    grid = Grid(*ENDS, shift=shift)
    return synthetic_runs(truth, grid, np.random.default_rng(seed), 0.0005, 0.0015)


def judged(truth: Synthetic, runs) -> tuple[float, bool, bool]:
    """Nats that the answer at the largest size's end loses, and whether the intervals of LR and B hold the truth."""
    n, d = ENDS[0][-1], ENDS[1][-1]
    found = predict(fit_laws(runs, OPTIONS), PredictionQuery(total_flops=6 * n * d, params=n))
    assert isinstance(found, Prediction)
    rate, batch = truth.rate(n, d), truth.batch(n, d)
    lost = truth.loss(n, d, found.batch_size_raw, found.learning_rate.value)
    lost -= truth.loss(n, d, batch, rate)
    return (
        lost,
        found.learning_rate.low < rate < found.learning_rate.high,
        found.batch_size.low < batch < found.batch_size.high,
    )


@pytest.mark.parametrize("shift", [(0.85, 0.0), (-0.85, 0.0), (0.0, 0.85), (0.0, -0.85)])
def test_an_optimum_that_is_just_outside_at_every_size_is_answered(shift):
    """It was refused, though slopes at the edge and the curvature tell it."""
    found = [judged(Synthetic(), sweep(Synthetic(), seed, shift)) for seed in range(4)]
    assert max(lost for lost, _, _ in found) < 0.001
    assert np.mean([held for _, *held in found]) >= 0.75


@pytest.mark.parametrize("seed", [1, 4])
def test_a_ridge_is_answered_though_its_curvature_may_be_none(seed):
    """It was refused for what a quarter of draws of the curvature showed. Any point of it is good."""
    truth = Synthetic(curvature=(0.10, 0.08, 0.09))
    lost, *held = judged(truth, sweep(truth, seed))
    assert lost < 0.0005
    assert all(held)


def test_an_optimum_just_above_learning_rates_that_diverge_is_refused():
    runs = sweep(Synthetic(), 0, (-1.0, 0.0))
    highest = {n: max(r.learning_rate for r in runs if r.params == n) for n in ENDS[0]}
    gone = [replace(r, diverged=r.learning_rate == highest[r.params]) for r in runs]
    refusal = fit_laws(gone, OPTIONS).surface.refusal
    assert refusal.reason is RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE
    assert "where runs diverge" in refusal.message


def test_an_optimum_that_is_outside_at_the_end_is_still_refused():
    grid = Grid(*ENDS, shift=(0.0, -1.6))
    laws = fit_laws(synthetic_runs(Synthetic(), grid, np.random.default_rng(0), 0.0003), OPTIONS)
    refusal = laws.surface.refusal
    assert refusal.reason is RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE
    assert refusal.figures["direction"] == "larger"
    assert "From 25% of every size's tokens on" in refusal.message


def test_nobody_is_sent_to_smaller_batches_that_only_early_tokens_want():
    """The batch grid begins where the optimum of the last quarter does."""
    grid = Grid(*ENDS, shift=(0.0, 0.55))
    runs = synthetic_runs(Synthetic(), grid, np.random.default_rng(0), 0.0003)
    laws = fit_laws(runs, OPTIONS)
    assert laws.surface.refusal is None
    short = [replace(r, tokens=r.tokens[-5:], losses=r.losses[-5:]) for r in runs]
    assert fit_laws(short, OPTIONS).surface.refusal is None


NARROW = Layout(rates=3, batches=3, step=float(np.log(1.5)))
"""So narrow that early losses want what the grid does not have."""
PAST, PLANNED, PARAMS = 3e19, 6e19, 8e8
"""FLOPs of a checkpoint and of its continued run, and its size."""


def test_where_all_runs_together_have_an_optimum_a_checkpoints_past_is_asked_of_the_best_of_them():
    """Two of three such grids were refused for it: single loss levels have their optimum beyond the edge."""
    truth = surface("exact", 0)
    size, tokens = truth.best_size(PAST)
    loss = truth.loss(size, tokens, truth.batch(size, tokens), truth.rate(size, tokens))
    total = (PAST + PLANNED) / (6 * PARAMS)
    query = PredictionQuery(
        initial_loss=loss, cpt_flops=PLANNED, params=PARAMS, composition="Paper"
    )
    answered = 0
    for seed in range(12):
        laws = fit_laws(synthetic_case("exact", NARROW, seed).runs, replace(OPTIONS, seed=seed))
        refusal = laws.learning_rate.refusal
        if refusal is None or refusal.reason not in NO_MINIMUM or laws.surface.refusal is not None:
            assert BEST_RUNS not in laws.warnings
            continue
        answered += 1
        assert BEST_RUNS in laws.warnings
        found = predict(laws, query)
        assert isinstance(found, Prediction)
        past = found.equivalent_flops
        assert PAST < past.value < 1.15 * PAST, "the best runs need more than the best settings"
        assert past.low < PAST
        assert found.learning_rate.low < truth.rate(PARAMS, total) < found.learning_rate.high
        assert found.batch_size.low < truth.batch(PARAMS, total) < found.batch_size.high
    assert answered >= 6


def test_where_all_runs_together_have_none_a_checkpoints_past_is_not_asked_of_the_best():
    grid = Grid(*ENDS, shift=(0.0, -1.6))
    laws = fit_laws(synthetic_runs(Synthetic(), grid, np.random.default_rng(0), 0.0003), OPTIONS)
    assert laws.surface.refusal is not None
    assert laws.loss_compute.refusal is not None
    assert BEST_RUNS not in laws.warnings


@pytest.mark.parametrize("query", [(6e19, 1e9), (6e18, 3e8)], ids=["larger", "its own"])
def test_an_optimum_inside_the_grid_is_answered_though_some_draws_lie_beyond_the_edge(query):
    """The three highest of five learning rates: their laws say what those of all say."""
    runs = datasets.load_sample_runs().runs
    highest = {
        params: sorted({r.learning_rate for r in runs if r.params == params})[2:]
        for params in {r.params for r in runs}
    }
    few = [r for r in runs if r.learning_rate in highest[r.params]]
    asked = PredictionQuery(total_flops=query[0], params=query[1])
    every, found = (
        predict(fit_laws(each, FitOptions(bootstrap_samples=100)), asked) for each in (runs, few)
    )
    assert isinstance(every, Prediction)
    assert isinstance(found, Prediction)
    for name in ("learning_rate", "batch_size"):
        own, true = getattr(found, name), getattr(every, name).value
        assert own.low <= true <= own.high
        assert own.value == pytest.approx(true, rel=0.35)


def test_a_size_of_three_runs_at_one_token_count_shows_nothing_and_harms_nothing():
    """Levels and slopes take all that it has: no rounding error of what is left counts as an observation."""
    rng, truth = np.random.default_rng(32), Synthetic()

    def run(params: float, batch: int, rate: float, tokens: list[float]) -> Run:
        exact = np.array([truth.loss(params, d, batch, rate) for d in tokens])
        losses = exact + 0.001 * rng.standard_normal(len(tokens))
        return Run(f"{params} {batch} {rate}", params, batch, 2048, rate, np.array(tokens), losses)

    runs = [
        run(2e8, batch, rate, [2e9, 4e9] if (i + j) % 3 else [2e9])
        for i, batch in enumerate((64, 128, 256))
        for j, rate in enumerate((5e-4, 1e-3, 2e-3))
    ]
    few = ((128, 1e-3), (128, 5e-4), (256, 1e-3))
    runs += [run(6e8, batch, rate, [4e9]) for batch, rate in few]
    refusal = fit_laws(runs, OPTIONS).surface.refusal
    assert refusal is not None
    assert refusal.figures["params"] == pytest.approx(6e8)


def runs_of_a_coarse_grid(sizes, tokens, off, rng):  # type: ignore[no-untyped-def]
    """Factors of 4, moved by `off` steps, and the surface that they are on."""
    truth, runs = surface("exact", 0), []
    for n, d in zip(sizes, tokens, strict=True):
        seen = np.geomspace(0.02 * d, d, 24)
        for i, j in np.ndindex(3, 3):
            rate = truth.rate(n, d) * 4.0 ** (i - 1 + off[0])
            batch = truth.batch(n, d) * 4.0 ** (j - 1 + off[1])
            losses = np.array([truth.loss(n, t, batch, rate) for t in seen])
            losses += 0.0007 * rng.standard_normal() + 0.0003 * rng.standard_normal(24)
            runs.append(Run(f"{n:g}-{i}-{j}", n, batch, 2048, rate, seen, losses))
    return runs, truth


def test_coarse_grids_that_lie_off_to_one_side_at_every_size_hold_the_best_rate():
    """The scale of the waste drifts over tokens, which shows as an exponent: two thirds were held, of answers that lose 0.0003 nats."""
    sizes, tokens, held = (2e7, 8e7, 3e8), (1.5e9, 4e9, 1.2e10), []
    for seed in range(6):
        off = (0.35 if seed % 2 else -0.35, 0.2 if seed % 3 else -0.2)
        runs, truth = runs_of_a_coarse_grid(sizes, tokens, off, np.random.default_rng(seed))
        laws = fit_laws(runs, OPTIONS)
        n, d = sizes[-1], tokens[-1]
        found = predict(laws, PredictionQuery(total_flops=6 * n * d, params=n)).learning_rate
        held.append(found.low <= truth.rate(n, d) <= found.high)
    assert np.mean(held) >= 0.8
