"""The search by one rule that `make bench-search` compares: what it believes, and what it wants trained."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.search.belief import SHARES, Belief, independent
from benchmarks.search.one_rule import Plan, plan
from benchmarks.search.strategies import one_rule
from benchmarks.search.sweeps import synthetic_sweep
from isoloss.laws import FitOptions
from isoloss.search import Point, Seen
from isoloss.search.lattice import grid_points
from isoloss.usual import EVALUATION_NOISE, USUAL_NOISE

SWEEP = synthetic_sweep("scattered", 0.0015, 2, 0)
FIT = FitOptions(bootstrap_samples=5)


def planned(multiple: float, seen: dict[Point, Seen] | None = None, additions: int = 12) -> Plan:
    return plan(SWEEP.sizes, seen or {}, additions, FIT, multiple)


def flops(found: Plan) -> float:
    last: dict[Point, float] = {}
    for choice in found.worth:
        last[choice.point] = max(choice.share, last.get(choice.point, 0.0))
    return sum(share * SWEEP.size_of(point).point_flops for point, share in last.items())


def test_before_any_run_the_optimum_is_expected_in_the_middle_of_the_grids():
    belief = Belief.of(SWEEP.sizes, (), FIT)
    middle = np.mean(
        [np.log(SWEEP.sizes[0].learning_rates), np.log(SWEEP.sizes[0].batch_sizes)], axis=1
    )
    both = belief.optimum(np.arange(2), belief.log_tokens)
    assert both.mean(axis=0) == pytest.approx(middle)


def test_runs_move_it_to_where_the_losses_are_least():
    points = [point for size in SWEEP.sizes for point in grid_points(size)]
    runs = [run for point in points if (run := SWEEP.train(point, SWEEP.size_of(point).tokens))]
    belief = Belief.of(SWEEP.sizes, runs, FIT)
    found = belief.optimum(np.array([1]), belief.log_tokens[[1]])[0]
    assert SWEEP.here.truth.regret(*np.exp(found)) < 0.001
    assert np.linalg.eigvalsh(belief.hessian)[0] > 0.0


def test_rows_of_one_run_tell_what_its_correlated_evaluations_tell():
    """The information of independent rows is that of generalised least squares."""
    rng = np.random.default_rng(0)
    design, slope = rng.standard_normal((3, 4)), np.full(3, 0.1)
    rows, variances = independent(design, np.zeros(3, dtype=np.intp), np.arange(3.0), slope)
    shared, own = ((2.0 * noise / 0.1) ** 2 for noise in (USUAL_NOISE, EVALUATION_NOISE))
    covariance = shared * np.ones((3, 3)) + own * np.eye(3)
    expected = design.T @ np.linalg.solve(covariance, design)
    assert rows.T @ (rows / variances[:, None]) == pytest.approx(expected)


def test_a_larger_target_is_worth_more_runs_and_a_small_one_none():
    assert not planned(0.01).worth
    assert 0.0 < flops(planned(3.0)) < flops(planned(30.0)) < flops(planned(300.0))


def test_rungs_are_planned_in_order_and_no_cell_with_fewer_runs_than_a_fit_reads():
    found = planned(30.0)
    assert {c.share for c in found.worth} <= set(SHARES)
    cells = Counter((c.point.size, c.share) for c in found.worth)
    assert min(cells.values()) >= 3
    for choice in found.worth:
        below = {c.share for c in found.worth if c.point == choice.point}
        assert {share for share in SHARES if share <= choice.share} <= below


def test_points_that_run_count_as_done():
    """Else every free Job would be given the same points, and a plan would never end."""
    first = planned(30.0)
    seen = {
        choice.point: Seen(choice.point, wanted=SWEEP.size_of(choice.point).tokens)
        for choice in first.worth
    }
    left = planned(30.0, seen)
    assert not {choice.point for choice in left.worth} & seen.keys()
    assert flops(left) < 0.2 * flops(first)


def test_nothing_is_added_beyond_the_grid_once_nothing_may_be():
    assert not any(choice.added for choice in planned(300.0, additions=0).worth)


def test_no_point_is_begun_at_a_learning_rate_that_diverged():
    size = SWEEP.sizes[0]
    worst = max(grid_points(size), key=lambda p: (p.learning_rate, p.batch_size))
    run = SWEEP.train(worst, 0.1 * size.tokens)
    gone = Seen(worst, replace(run, diverged=True), 0.1 * size.tokens)
    found = planned(300.0, {worst: gone})
    above = [
        choice.point
        for choice in (*found.worth, *found.rest)
        if choice.point.size == size.name
        and choice.point.learning_rate >= worst.learning_rate
        and choice.point.batch_size <= worst.batch_size
    ]
    assert not above


def test_more_jobs_at_a_time_take_fewer_rounds_and_less_time():
    few, many = (one_rule(12, FIT, jobs)(SWEEP) for jobs in (2, 16))
    assert len(many.rounds) < len(few.rounds)
    assert many.elapsed(16) < few.elapsed(16)
