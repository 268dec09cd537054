"""Designs that do not show the valley's curvature are refused, and the points that the refusal names mend them."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from isoloss import laws as engine
from tests.support.synthetic import Deviating, Grid, Synthetic, synthetic_runs

OPTIONS = engine.FitOptions(bootstrap_samples=40)
SIZES, TOKENS = (1e8, 2e8, 4e8), (8e9, 1.2e10, 2e10)
TARGET = engine.PredictionQuery(total_flops=6 * 4e8 * 3e10, params=4e8)
Design = Callable[[Sequence[float], Sequence[float], engine.Run], bool]


def _cross(rates: Sequence[float], batches: Sequence[float], run: engine.Run) -> bool:
    middle = rates[len(rates) // 2], batches[len(batches) // 2]
    return run.learning_rate == middle[0] or run.batch_size == middle[1]


def _everything(_rates: Sequence[float], _batches: Sequence[float], _run: engine.Run) -> bool:
    return True


def sweep(seed: int, rates: int, batches: int, design: Design) -> list[engine.Run]:
    """The runs of a grid of every size that the design has."""
    grid = Grid(sizes=SIZES, tokens=TOKENS, rates=rates, batches=batches)
    world = Deviating(Synthetic(), seed)
    runs = synthetic_runs(world, grid, np.random.default_rng(seed), 0.0005, 0.001)
    kept = []
    for size in SIZES:
        own = [run for run in runs if run.params == size]
        lines = sorted({r.learning_rate for r in own}), sorted({r.batch_size for r in own})
        kept += [run for run in own if design(*lines, run)]
    return kept


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("rates", "batches", "design", "missing"),
    [
        (3, 3, _cross, "diagonal"),
        (5, 5, _cross, "diagonal"),
        (2, 4, _everything, "learning rate"),
        (4, 2, _everything, "batch size"),
    ],
    ids=["a cross", "a wide cross", "two learning rates", "two batch sizes"],
)
def test_a_direction_of_curvature_that_was_not_tried_is_named(
    rates, batches, design, missing, seed
):
    laws = engine.fit_laws(sweep(seed, rates, batches, design), OPTIONS)
    refusal = laws.surface.refusal
    assert refusal.reason is engine.RefusalReason.CURVATURE_NOT_IDENTIFIED
    assert refusal.figures["missing"] == missing
    assert refusal.figures["share"] < 0.01
    assert isinstance(engine.predict(laws, TARGET), engine.Refused)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("rates", "batches", "design"),
    [(3, 3, _cross), (5, 5, _cross), (2, 4, _everything), (4, 2, _everything)],
)
def test_the_points_that_a_refusal_names_mend_the_design(rates, batches, design, seed):
    runs = sweep(seed, rates, batches, design)
    refusal = engine.fit_laws(runs, OPTIONS).surface.refusal
    world, rng = Deviating(Synthetic(), seed), np.random.default_rng(seed + 100)
    named = refusal.message.partition("Add these runs: ")[2].rstrip(".").split("; ")
    assert len(named) == len(SIZES)
    for words in named:
        rate, rest = words.removeprefix("learning rate ").split(" with batch size ")
        batch, size = rest.removesuffix(" parameters").split(" at ")
        runs.append(_trained(world, float(size), float(batch), float(rate), rng))
    mended = engine.fit_laws(runs, OPTIONS).surface.refusal
    assert mended is None or mended.reason is not engine.RefusalReason.CURVATURE_NOT_IDENTIFIED


def _diagonal(rates: Sequence[float], batches: Sequence[float], run: engine.Run) -> bool:
    return rates.index(run.learning_rate) == batches.index(run.batch_size)


@pytest.mark.parametrize(
    ("rates", "batches", "design", "opened"),
    [
        (5, 1, _everything, 2),
        (2, 2, _everything, 2),
        (5, 5, _diagonal, 2),
        (3, 3, _cross, 1),
        (4, 2, _everything, 1),
    ],
)
def test_that_more_than_one_direction_is_open_is_said_with_the_runs_for_the_first(
    rates, batches, design, opened
):
    message = engine.fit_laws(sweep(0, rates, batches, design), OPTIONS).surface.refusal.message
    assert ("Add at least these runs" in message) == (opened > 1)


def _trained(
    world: Deviating, size: float, batch: float, rate: float, rng: np.random.Generator
) -> engine.Run:
    tokens = np.geomspace(0.01, 1.0, 30) * TOKENS[SIZES.index(size)]
    loss = np.array([world.loss(size, t, batch, rate) for t in tokens])
    return engine.Run(
        f"named-{size:g}", size, batch, 2048, rate, tokens, loss + 0.001 * rng.normal()
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_cross_with_two_points_off_its_lines_at_one_size_shows_the_curvature(seed):
    def design(rates: Sequence[float], batches: Sequence[float], run: engine.Run) -> bool:
        corners = {(rates[0], batches[-1]), (rates[-1], batches[-1])}
        own_corner = run.params == SIZES[0] and (run.learning_rate, run.batch_size) in corners
        return own_corner or _cross(rates, batches, run)

    refusal = engine.fit_laws(sweep(seed, 3, 3, design), OPTIONS).surface.refusal
    assert refusal is None or refusal.reason is not engine.RefusalReason.CURVATURE_NOT_IDENTIFIED
