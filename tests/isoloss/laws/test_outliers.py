"""Runs whose losses cannot be theirs are named; they are left out only where that is beyond doubt."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.science.cases import synthetic_case, with_outlier
from benchmarks.science.shapes import SMALL, WIDE, Layout
from isoloss.laws import (
    FitOptions,
    InvalidRunError,
    fit_laws,
)
from tests.support.synthetic_runs import answered

OPTIONS = FitOptions(bootstrap_samples=60)
WHOLE = pytest.mark.whole


def changed_names(runs, changed) -> set[str]:  # type: ignore[no-untyped-def]
    return {a.name for a, b in zip(runs, changed, strict=True) if a is not b}


def regret(laws, case) -> float:  # type: ignore[no-untyped-def]
    n, d, truth = case.targets[0]
    found = answered(laws, total_flops=6 * n * d, params=n)
    return truth.regret(found.learning_rate.value, found.batch_size_raw)


@pytest.mark.parametrize("layout", [WIDE, SMALL], ids=["5x5", "3x3"])
@pytest.mark.parametrize(
    "seed", [0, 1, pytest.param(2, marks=WHOLE), pytest.param(3, marks=WHOLE)]
)
def test_one_run_far_too_low_is_left_out_by_name(layout, seed):
    """0.15 nats: the answer is that of the sweep without it."""
    case = synthetic_case("exact", layout, seed)
    runs = with_outlier(case.runs, np.random.default_rng(seed))
    (name,) = changed_names(case.runs, runs)
    laws = fit_laws(runs, OPTIONS)
    assert [e.run for e in laws.excluded] == [name]
    (warning,) = [w for w in laws.warnings if name in w]
    assert "Left out; with it" in warning
    assert "nats less than its neighbours allow" in warning
    without = fit_laws([r for r in case.runs if r.name != name], OPTIONS)
    assert regret(laws, case) == pytest.approx(regret(without, case), abs=1e-9)
    assert regret(laws, case) < 0.001


def test_nothing_is_left_out_where_the_user_wants_it_kept():
    case = synthetic_case("exact", WIDE, 0)
    runs = with_outlier(case.runs, np.random.default_rng(0))
    (name,) = changed_names(case.runs, runs)
    laws = fit_laws(runs, replace(OPTIONS, keep_outliers=True))
    assert laws.excluded == ()
    (warning,) = [w for w in laws.warnings if name in w]
    assert "Kept; without it the best learning rate" in warning
    assert "instead of" in warning


def test_a_run_that_is_only_doubtful_is_named_and_kept():
    """0.02 nats are many times the noise, but data may be like that."""
    case = synthetic_case("exact", WIDE, 0)
    best = min((r for r in case.runs if r.params == 4e8), key=lambda r: r.losses[-1])
    runs = [replace(r, losses=r.losses - 0.02) if r is best else r for r in case.runs]
    laws = fit_laws(runs, OPTIONS)
    assert laws.excluded == ()
    assert [w for w in laws.warnings if best.name in w and "Kept; without it" in w]


def test_a_run_that_diverged_later_stays_where_laws_are_compared_without_another():
    case = synthetic_case("scattered", WIDE, 0)
    best = min((r for r in case.runs if r.params == 4e8), key=lambda r: r.losses[-1])
    fastest = max((r for r in case.runs if r.params == 4e8), key=lambda r: r.learning_rate)
    late = fastest.losses.copy()
    late[-1] = np.nan
    runs = [replace(r, losses=r.losses - 0.02) if r is best else r for r in case.runs]
    runs = [replace(r, losses=late, diverged=True) if r.name == fastest.name else r for r in runs]
    laws = fit_laws(runs, OPTIONS)
    assert [e.run for e in laws.excluded] == [fastest.name]
    (warning,) = [w for w in laws.warnings if best.name in w and "Kept; without it" in w]
    trends = fit_laws([r for r in runs if r.name != best.name], OPTIONS).surface.optimum
    rate, batch = np.exp(trends.at(np.log(4e8), np.log(best.tokens[-1])))
    assert f"would be {rate:.3g} and its batch size {batch:.3g} instead" in warning


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=WHOLE) for seed in range(1, 5))])
@pytest.mark.parametrize("shape", ["exact", "scattered", "soft", "skewed"])
def test_sound_runs_are_not_suspected(shape, seed):
    for layout in (WIDE, SMALL):
        laws = fit_laws(synthetic_case(shape, layout, seed).runs, OPTIONS)
        assert laws.excluded == ()
        assert not [w for w in laws.warnings if "neighbours" in w]


def test_a_run_is_excluded_by_name():
    case = synthetic_case("exact", WIDE, 0)
    name = case.runs[7].name
    laws = fit_laws(case.runs, replace(OPTIONS, exclude=(name,)))
    assert [(e.run, e.reason) for e in laws.excluded] == [(name, "excluded as asked")]
    assert all(name not in c.run_names for c in laws.contours)


def test_a_name_to_exclude_that_no_run_has_is_an_error():
    case = synthetic_case("exact", WIDE, 0)
    with pytest.raises(InvalidRunError, match="run bogus: exclude names a run that is not there"):
        fit_laws(case.runs, replace(OPTIONS, exclude=("bogus",)))


SLIPS = Layout(sizes=(1e8, 2e8, 4e8, 8e8), tokens=(8e9, 1.2e10, 2e10, 3e10), rates=4, batches=5)


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize(
    "at", [1, pytest.param(12, marks=WHOLE), 37, pytest.param(52, marks=WHOLE), 79]
)
def test_a_learning_rate_ten_times_too_high_or_low_is_named_and_left_out(at, factor):
    """One of 80 runs, whose loss is no lower than others': only its label is wrong."""
    case = synthetic_case("exact", SLIPS, 0)
    runs = list(case.runs)
    right = runs[at]
    runs[at] = replace(right, learning_rate=factor * right.learning_rate)
    laws = fit_laws(runs, FitOptions(bootstrap_samples=20))
    assert [e.run for e in laws.excluded] == [right.name]
    (warning,) = [w for w in laws.warnings if right.name in w]
    assert f"probably trained at a learning rate of {right.learning_rate:.3g}" in warning
    assert regret(laws, case) < 0.001


def test_a_lone_run_far_outside_the_grid_is_kept():
    """A learning rate that somebody tried beyond the edge is no slip of the pen."""
    case = synthetic_case("exact", SLIPS, 0)
    edge = max(case.runs, key=lambda run: (run.params, run.learning_rate, run.batch_size))
    beyond = replace(edge, name="beyond", learning_rate=10 * edge.learning_rate)
    beyond = replace(beyond, losses=edge.losses + 0.4)
    laws = fit_laws([*case.runs, beyond], FitOptions(bootstrap_samples=20))
    assert laws.excluded == ()
