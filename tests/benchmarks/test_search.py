"""The replays that the sequential search is judged by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.science.tables import Table
from benchmarks.search.__main__ import compare, table
from benchmarks.search.published import ladders, replay, table_worlds
from benchmarks.search.scores import EXHAUSTIVE, SEQUENTIAL, Result, judge, placing
from benchmarks.search.strategies import Searched, exhaustive, median_stopping, successive_halving
from benchmarks.search.worlds import place_of, planted_world
from isoloss.laws import FitOptions, Run, measured_noise
from isoloss.search.lattice import grid_points
from tests.support.planted import Planted

RATES = np.geomspace(3e-4, 1e-2, 11)
BATCHES = np.round(np.geomspace(16, 2048, 15))
TRUTH = Planted(batch_at=(128.0, -0.05, 0.40))


@pytest.fixture(scope="module")
def source():
    """A table as published: final losses only, every token count another run."""
    runs, cells = [], []
    for n, most in ((1e8, 8e9), (2.5e8, 1.6e10)):
        for d in (0.2 * most, 0.4 * most, most):
            for lr in RATES:
                for b in BATCHES:
                    loss = np.array([TRUTH.loss(n, d, b, lr)])
                    runs.append(Run(f"{n}{d}{lr}{b}", n, b, 2048, lr, np.array([d]), loss))
                    cells.append((n, d))
    return replay("made up", Table(tuple(runs), tuple(cells)))


@pytest.fixture(scope="module")
def compared():
    return compare(planted_world("scattered", 0.0015, 3, 0), samples=30)


def test_sequential_costs_less_than_everything_and_answers_nearly_as_well(compared):
    found = {result.strategy: result for result in compared}
    assert found[EXHAUSTIVE].share == pytest.approx(1.0)
    assert found[SEQUENTIAL].share < 0.6
    assert found[SEQUENTIAL].here.regret < found[EXHAUSTIVE].here.regret + 0.001


def test_an_optimum_is_surrounded_where_its_largest_size_has_points_on_both_sides_of_it():
    world = planted_world("scattered", 0.0015, 2, 0)
    trained = exhaustive(world)
    rate, _ = np.exp(world.here.truth.vertex)
    options = FitOptions(bootstrap_samples=5)
    largest = world.sizes[-1].params
    below = [r for r in trained.runs if r.params != largest or r.learning_rate < rate]
    assert judge(world, EXHAUSTIVE, trained, options).surrounded
    assert not judge(world, EXHAUSTIVE, replace(trained, runs=tuple(below)), options).surrounded


def test_runs_in_one_row_and_one_column_place_no_checkpoint():
    world = planted_world("scattered", 0.0015, 2, 0)
    trained = exhaustive(world)
    size = world.sizes[-1]
    rate, batch = (sorted(values)[1] for values in (size.learning_rates, size.batch_sizes))
    cross = [run for run in trained.runs if run.learning_rate == rate or run.batch_size == batch]
    options = FitOptions(bootstrap_samples=5)
    whole = judge(world, EXHAUSTIVE, trained, options)
    part = judge(world, SEQUENTIAL, replace(trained, runs=tuple(cross)), options)
    assert whole.places_checkpoints
    assert not part.places_checkpoints
    assert "1 of 1 of Exhaustive, 0 of Sequential, which lacks 1" in placing([whole], [part])


def test_results_survive_being_stored(compared):
    assert [Result.of_json(result.as_json()) for result in compared] == compared


def test_the_table_names_every_strategy(compared):
    text = "\n".join(table([compared]))
    assert all(result.strategy in text for result in compared[1:])


def test_a_replayed_point_never_shows_a_loss_of_more_tokens_than_it_pays_for(source):
    world = next(table_worlds(source))
    size = world.sizes[-1]
    point = grid_points(size)[0]
    whole = world.train(point, size.tokens)
    for share in (0.1, 0.3, 0.5):
        part = world.train(point, share * size.tokens)
        assert part.tokens[-1] >= 0.999 * share * size.tokens
        assert np.array_equal(part.losses, whole.losses[: len(part.losses)])
        assert set(part.tokens) <= {d for n, d in source.judges if n == size.params}


def test_a_point_outside_the_table_cannot_be_trained(source):
    world = next(table_worlds(source))
    point = grid_points(world.sizes[0])[0]
    elsewhere = type(point)(point.size, 1e6, point.learning_rate)
    assert world.train(elsewhere, 1e9) is None


def test_a_cell_that_no_table_has_is_charged_as_if_it_had_been_trained(source):
    """As the whole grid is, by whose cost all are divided; it says nothing."""
    world = next(table_worlds(source))
    size = world.sizes[0]
    rates = (*size.learning_rates[:-1], 10 * size.learning_rates[-1])
    apart = replace(world, sizes=(replace(size, learning_rates=rates), *world.sizes[1:]))
    found = exhaustive(apart)
    assert found.flops == pytest.approx(sum(size.grid_flops for size in apart.sizes))
    assert len(found.runs) == len(exhaustive(world).runs) - len(size.batch_sizes)


def test_elapsed_rounds_wait_for_their_slowest_job():
    """Two rounds of three Jobs on two slots; one after the other they take what they cost."""
    trained = Searched((), 12.0, 12.0, rounds=((1.0, 2.0, 3.0), (4.0, 1.0, 1.0)))
    assert trained.elapsed(1) == 12.0
    assert trained.elapsed(2) == 4.0 + 5.0
    assert trained.elapsed(16) == 3.0 + 4.0


def test_with_one_job_at_a_time_a_search_takes_what_it_asks_for(compared):
    """And never longer with more; rivals are not played in rounds."""
    for result in compared[:2]:
        assert result.elapsed[0] == pytest.approx(result.share)
        assert list(result.elapsed) == sorted(result.elapsed, reverse=True)
    assert not any(result.elapsed for result in compared[2:])


def test_a_planted_point_that_is_trained_with_other_seeds_shows_the_noise_between_them():
    world = planted_world("scattered", 0.004, 2, 0)
    point, tokens = grid_points(world.sizes[0])[0], world.sizes[0].tokens
    runs = [world.train(replace(point, replicate=seed), tokens) for seed in range(30)]
    assert measured_noise(runs).deviation == pytest.approx(world.noise, rel=0.3)


def test_a_published_point_cannot_be_trained_with_another_seed(source):
    world = next(table_worlds(source))
    point = grid_points(world.sizes[0])[0]
    assert world.train(replace(point, replicate=1), world.sizes[0].tokens) is None


def test_windows_have_their_optimum_at_every_place(source):
    worlds = list(table_worlds(source))
    assert {world.place for world in worlds} == {"inside", "near", "edge", "outside"}
    assert {len(world.sizes[0].batch_sizes) for world in worlds} == {3, 4, 5}
    assert len(ladders(source)) == 2


@pytest.mark.parametrize(
    ("at", "place"), [(2.0, "inside"), (1.2, "near"), (0.8, "edge"), (0.4, "outside")]
)
def test_the_place_of_an_optimum_is_told_in_steps_of_the_grid(at, place):
    assert place_of(np.log([at, 2.0]), [1.0, 2.0, 4.0], [1.0, 2.0, 4.0]) == place


@pytest.mark.parametrize("rival", [successive_halving, median_stopping])
def test_rivals_pay_only_for_what_they_train(rival):
    world = planted_world("scattered", 0.0015, 2, 0)
    assert rival(world).flops < 0.6 * exhaustive(world).flops
