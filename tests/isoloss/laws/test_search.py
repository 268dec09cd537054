"""Where the next points go, and which running points may stop."""

from dataclasses import replace

import numpy as np

from isoloss.laws import FitOptions, fit_laws
from isoloss.laws.search import extend_grid, prunable
from tests.support.planted import Grid, Planted, planted_runs

OPTIONS = FitOptions(bootstrap_samples=60)
GRID = Grid(rates=3, batches=3, seen_from=0.05)
TARGETS = {1e8: 1e10, 3e8: 2e10}


def planted(grid=GRID, noise=0.0005):
    return planted_runs(Planted(), grid, np.random.default_rng(0), noise)


def cut(runs, share):
    """The sweep as it looked at a share of its tokens."""
    cut_runs = []
    for run in runs:
        seen = run.tokens <= share * run.tokens[-1]
        cut_runs.append(
            replace(run, tokens=run.tokens[seen], losses=run.losses[seen], finished=False)
        )
    return cut_runs


def test_an_edge_in_the_learning_rate_asks_for_the_next_larger_one():
    runs = planted(replace(GRID, shift=(-1.5, 0.0), seen_from=0.3))
    extensions = extend_grid(fit_laws(runs, OPTIONS), runs, max_points=6)
    assert extensions
    for extension in extensions:
        own = [r for r in runs if r.params == extension.params]
        largest = max(r.learning_rate for r in own)
        for point in extension.points:
            assert np.isclose(point.learning_rate, 2.0 * largest)
            assert point.batch_size in {r.batch_size for r in own}
        assert "extend the grid to larger values" in extension.reason


def test_an_edge_in_the_batch_size_asks_for_the_next_smaller_one():
    runs = planted(replace(GRID, shift=(0.0, 1.8), seen_from=0.3))
    extensions = extend_grid(fit_laws(runs, OPTIONS), runs, max_points=6)
    assert extensions
    for extension in extensions:
        smallest = min(r.batch_size for r in runs if r.params == extension.params)
        assert all(p.batch_size < smallest for p in extension.points)
        assert all(float(p.batch_size).is_integer() for p in extension.points)


def test_the_points_nearest_the_best_run_come_first_and_the_budget_holds():
    runs = planted(replace(GRID, shift=(-1.5, 0.0), seen_from=0.3))
    laws = fit_laws(runs, OPTIONS)
    everything = extend_grid(laws, runs, max_points=100)
    first = everything[0]
    own = [r for r in runs if r.params == first.params]
    best = min(own, key=lambda r: r.losses[-1])
    distances = [abs(np.log(p.batch_size / best.batch_size)) for p in first.points]
    assert distances == sorted(distances)
    limited = extend_grid(laws, runs, max_points=2)
    assert sum(len(e.points) for e in limited) == 2


def test_an_optimum_inside_asks_for_nothing():
    runs = planted(replace(GRID, rates=4, batches=4, seen_from=0.3))
    assert extend_grid(fit_laws(runs, OPTIONS), runs, max_points=6) == ()


def test_nothing_is_pruned_before_thirty_percent_of_the_tokens():
    assert prunable(cut(planted(), 0.25), TARGETS) == ()


def test_hopeless_runs_are_pruned_and_the_best_never():
    wide = replace(GRID, rates=5, batches=4)
    runs = planted(wide)
    found = prunable(cut(runs, 0.45), TARGETS)
    assert found
    for params in GRID.sizes:
        own = [r for r in runs if r.params == params]
        best = sorted(own, key=lambda r: r.losses[-1])[:3]
        assert not {p.run for p in found} & {r.name for r in best}
    for verdict in found:
        run = next(r for r in runs if r.name == verdict.run)
        assert verdict.loss_bound <= run.losses[-1] + 0.003
        assert verdict.expected_loss == np.float64(verdict.expected_loss)
        assert abs(verdict.expected_loss - run.losses[-1]) < 0.03
        assert 0 <= verdict.error_risk < 0.01
        assert verdict.tokens_saved > 0


def test_the_next_larger_batch_beside_the_leader_is_never_pruned():
    """Even where it looks hopeless: larger batches catch up late."""
    runs = cut(planted(replace(GRID, batches=4)), 0.5)
    own = [r for r in runs if r.params == 1e8]
    leader = min(own, key=lambda r: r.losses[-1])
    larger = min(r.batch_size for r in own if r.batch_size > leader.batch_size)
    handicapped = [replace(r, losses=r.losses + 0.5) if r is not leader else r for r in runs]
    pruned = {p.run for p in prunable(handicapped, TARGETS)}
    beside = {
        r.name for r in own if r.batch_size == larger and r.learning_rate == leader.learning_rate
    }
    assert beside
    assert not pruned & beside
    assert pruned & {r.name for r in own}


def test_finished_and_diverged_runs_are_not_pruned():
    runs = cut(planted(replace(GRID, rates=5)), 0.5)
    done = [replace(r, finished=True) for r in runs]
    assert prunable(done, TARGETS) == ()
