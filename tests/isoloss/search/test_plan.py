"""What a search believes of the valley, and what it finds worth training."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from isoloss.design import Target
from isoloss.laws import FitOptions, Run
from isoloss.search import Point, Seen, Size
from isoloss.search.belief import Belief, independent
from isoloss.search.plan import Choice, Plan, default_target, plan
from isoloss.usual import EVALUATION_NOISE, FEWEST_RUNS, USUAL_NOISE
from tests.support.synthetic import Synthetic

FIT = FitOptions(bootstrap_samples=5)
TRUTH = Synthetic(rate_at=(1.2e-3, -0.4, 0.10), batch_at=(128.0, -0.05, 0.40))
FACTORS = 2.0 ** np.arange(-1.5, 2.0)


def size(name: str, params: float, tokens: float) -> Size:
    batch, rate = TRUTH.batch(params, tokens), TRUTH.rate(params, tokens)
    return Size(name, params, tokens, tuple(np.round(batch * FACTORS)), tuple(rate * FACTORS))


SIZES = (size("small", 1e8, 8e9), size("large", 3e8, 2e10))
BY_NAME = {each.name: each for each in SIZES}
DEFAULT = default_target(SIZES)


def trained(point: Point, share: float) -> Seen:
    own = BY_NAME[point.size]
    tokens = np.geomspace(0.02, share, 20) * own.tokens
    rate, batch = point.learning_rate, point.batch_size
    losses = np.array([TRUTH.loss(own.params, t, batch, rate) for t in tokens])
    run = Run(str(point), own.params, batch, 2048, rate, tokens, losses)
    return Seen(point, run, share * own.tokens)


def planned(
    times: float = 1.0,
    seen: dict[Point, Seen] | None = None,
    additions: int = 12,
    sizes: tuple[Size, ...] = SIZES,
) -> Plan:
    """For so many times the compute of a search without a target."""
    known, root = seen or {}, math.sqrt(times)
    belief = Belief.of(sizes, list(known.values()), FIT)
    target = Target(root * DEFAULT.params, root * DEFAULT.tokens)
    return plan(belief, known, additions, target)


def flops(choices: tuple[Choice, ...]) -> float:
    return sum(choice.flops for choice in choices)


def test_before_any_run_the_optimum_is_expected_in_the_middle_of_the_grids():
    belief = Belief.of(SIZES, (), FIT)
    middle = np.mean(
        [np.log([each.learning_rates, each.batch_sizes]).mean(axis=1) for each in SIZES], axis=0
    )
    both = belief.optimum(np.arange(2), belief.log_tokens)
    assert both.mean(axis=0) == pytest.approx(middle)


def test_runs_move_it_to_where_the_losses_are_least():
    """Also from grids whose middle is elsewhere."""
    moved = tuple(replace(s, learning_rates=s.learning_rates[1:]) for s in SIZES)
    seen = [trained(point, 1.0) for each in moved for point in each.points]
    belief = Belief.of(moved, seen, FIT)
    rate, batch = np.exp(belief.optimum(np.array([1]), belief.log_tokens[[1]])[0])
    assert rate == pytest.approx(TRUTH.rate(3e8, 2e10), rel=0.1)
    assert batch == pytest.approx(TRUTH.batch(3e8, 2e10), rel=0.1)
    assert np.linalg.eigvalsh(belief.hessian)[0] > 0.0


def test_losses_of_another_unit_leave_a_belief():
    """A million times as large, they show next to no noise of seeds, and the prior is lost in rounding."""
    rates = tuple(5.5e-6 * 2.0 ** np.arange(4))
    sizes = (
        Size("short", 1.26e10, 2.2e5, (1.0,), rates),
        Size("long", 4.4e9, 4.6e10, (120.0, 240.0, 481.0), (2.35e-4, 4.7e-4)),
    )
    tokens = np.geomspace(0.02, 0.1, 6) * 2.2e5
    seen = []
    for rate in rates[1:]:
        losses = 1e6 * np.array([Synthetic().loss(1.26e10, t, 1.0, rate) for t in tokens])
        run = Run(f"{rate}", 1.26e10, 1.0, 2048, rate, tokens, losses)
        seen.append(Seen(Point("short", 1.0, rate), run, 2.2e4))
    belief = Belief.of(sizes, seen, FIT)
    optima = belief.optimum(np.arange(2), belief.log_tokens)
    assert np.abs(optima - belief.middle).max() < 5.0


def test_rows_of_one_run_show_what_its_correlated_evaluations_show():
    """The information of independent rows is that of generalised least squares."""
    rng = np.random.default_rng(0)
    design, slope = rng.standard_normal((3, 4)), np.full(3, 0.1)
    rows, variances = independent(design, np.zeros(3, dtype=np.intp), np.arange(3.0), slope)
    shared, own = ((2.0 * noise / 0.1) ** 2 for noise in (USUAL_NOISE, EVALUATION_NOISE))
    covariance = shared * np.ones((3, 3)) + own * np.eye(3)
    expected = design.T @ np.linalg.solve(covariance, design)
    assert rows.T @ (rows / variances[:, None]) == pytest.approx(expected)


def test_a_larger_target_is_worth_more_runs_and_a_small_one_none():
    assert not planned(1e-4).worth
    costs = [flops(planned(times).worth) for times in (0.1, 1.0, 10.0)]
    assert costs == sorted(set(costs))


def test_what_is_worth_training_saves_more_than_it_costs():
    found = planned()
    assert sum(choice.saves for choice in found.worth) > flops(found.worth)
    first = found.rest[0]
    assert first.saves < first.flops


def test_rungs_are_planned_in_order_and_no_cell_with_fewer_runs_than_a_fit_reads():
    found = planned()
    cells = Counter((c.point.size, c.tokens) for c in found.worth)
    assert min(cells.values()) >= FEWEST_RUNS
    reached = dict[Point, float]()
    for choice in found.worth:
        assert choice.tokens > reached.get(choice.point, 0.0)
        reached[choice.point] = choice.tokens


@pytest.mark.parametrize(("rates", "batches"), [(4, 1), (1, 3), (2, 2)])
def test_grids_of_fewer_points_are_trained_whole_or_not_at_all(rates, batches):
    """Of one batch size, or of a few: fewer than six runs cannot be asked for more."""
    small = tuple(
        replace(s, learning_rates=s.learning_rates[:rates], batch_sizes=s.batch_sizes[:batches])
        for s in SIZES
    )
    found = planned(sizes=small, additions=0)
    cells = Counter((c.point.size, c.tokens) for c in found.worth)
    assert cells
    assert set(cells.values()) == {rates * batches}


def test_points_that_run_count_as_done():
    """Else every free Job would be given the same points, and a plan would never end."""
    first = planned()
    seen = {c.point: Seen(c.point, wanted=BY_NAME[c.point.size].tokens) for c in first.worth}
    left = planned(seen=seen)
    assert not {choice.point for choice in left.worth} & seen.keys()
    assert flops(left.worth) < 0.2 * flops(first.worth)


def test_nothing_is_added_beyond_the_grid_once_nothing_may_be():
    assert not any(choice.added for choice in planned(10.0, additions=0).worth)


def test_no_batch_beyond_the_largest_is_added():
    narrow = [
        replace(s, batch_sizes=s.batch_sizes[1:3], learning_rates=s.learning_rates[1:3])
        for s in SIZES
    ]

    def largest(most: float | None) -> float:
        found = planned(sizes=tuple(replace(s, largest_batch_size=most) for s in narrow))
        return max(c.point.batch_size for c in (*found.worth, *found.rest) if c.added)

    own = max(s.batch_sizes[-1] for s in narrow)
    assert largest(own) == own < largest(None)


def test_no_point_is_begun_at_a_learning_rate_that_diverged():
    small = SIZES[0]
    worst = max(small.points, key=lambda p: (p.learning_rate, p.batch_size))
    seen = trained(worst, 0.1)
    assert seen.run is not None
    found = planned(10.0, {worst: replace(seen, run=replace(seen.run, diverged=True))})
    above = [
        choice.point
        for choice in (*found.worth, *found.rest)
        if choice.point.size == small.name
        and choice.point.learning_rate >= worst.learning_rate
        and choice.point.batch_size <= worst.batch_size
    ]
    assert not above


@pytest.mark.parametrize(("first", "share"), [(0.0, 0.1), (0.2, 0.2), (2.0, 0.9)])
def test_runs_are_compared_no_earlier_than_they_can_be(first, share):
    """After warm-up and the first evaluations; the later rungs move with the first."""
    late = replace(SIZES[0], first_tokens=first * SIZES[0].tokens)
    assert late.rungs[0] == pytest.approx(share)
    assert late.rungs == tuple(sorted(set(late.rungs)))
    assert late.rungs[-1] == 1.0
    tokens = {c.tokens / late.tokens for c in planned(sizes=(late, SIZES[1])).worth}
    assert min(tokens) >= min(0.1, share)


def test_grids_in_which_everything_diverges_put_the_optimum_below_them():
    seen = [trained(point, 0.1) for point in SIZES[0].points]
    gone = [replace(s, run=replace(s.run, diverged=True)) for s in seen if s.run is not None]
    lowest = min(SIZES[0].learning_rates)
    assert Belief.of(SIZES, gone, FIT).middle[0] == pytest.approx(math.log(lowest / 2.0))
    assert Belief.of(SIZES, seen, FIT).middle[0] > math.log(lowest)
