"""What a search does about an optimum that the laws put at or beyond the outermost value tried."""

from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import FitOptions, Run
from isoloss.search import Point, Reason, SearchOptions, Seen, Size
from isoloss.search.aiming import BeyondGrid, locate
from isoloss.search.racing import beyond_outermost, permitted
from isoloss.search.state import State
from tests.support.synthetic import Synthetic

TRUTH = Synthetic(rate_at=(1.2e-3, -0.4, 0.10), batch_at=(128.0, -0.05, 0.40))
FIT = FitOptions(bootstrap_samples=20)
SHARES = np.geomspace(0.05, 1.0, 12)
FACTORS = tuple(2.0 ** np.arange(-1.5, 2.0))


def size(name: str, params: float, tokens: float, *, batches: float = 1.0) -> Size:
    """A 4 x 4 grid about its optimum, or with all batch sizes multiplied."""
    best = TRUTH.batch(params, tokens) * batches, TRUTH.rate(params, tokens)
    grids = [tuple(float(value * factor) for factor in FACTORS) for value in best]
    return Size(name, params, tokens, tuple(float(round(b)) for b in grids[0]), grids[1])


def run(of: Size, point: Point) -> Run:
    tokens = SHARES * of.tokens
    at = (point.batch_size, point.learning_rate)
    losses = np.array([TRUTH.loss(of.params, t, *at) for t in tokens])
    return Run(str(point), of.params, at[0], 2048, at[1], tokens, losses)


def trained(of: Size) -> list[Seen]:
    points = [Point(of.name, b, lr) for b in of.batch_sizes for lr in of.learning_rates]
    return [Seen(point, run(of, point), of.tokens) for point in points]


@pytest.mark.parametrize("batches", [0.2, 5.0])
def test_a_refusal_that_names_an_edge_says_at_which_size_and_where(batches: float) -> None:
    sizes = [
        size(name, n, d, batches=batches) for name, n, d in (("s", 1e8, 8e9), ("l", 3e8, 2e10))
    ]
    runs = [seen.run for each in sizes for seen in trained(each) if seen.run is not None]
    found = locate(runs, sizes[-1], FIT)
    assert isinstance(found, BeyondGrid)
    assert (found.quantity, found.larger) == ("batch_size", batches < 1.0)


SMALL = size("small", 1e8, 8e9)


def state(seen: list[Seen], additions: int = 2) -> State:
    return State.of([SMALL], seen, SearchOptions(fit=FIT, max_added_points=additions), 0.0015)


def beyond(now: State, *, larger: bool = False) -> list[tuple[Point, Reason]]:
    race = now.race_at(SMALL)
    assert race is not None
    decisions = beyond_outermost(now, SMALL, race, axis="batch_size", larger=larger)
    return [(decision.point, decision.reason) for decision in decisions]


def test_a_step_beyond_the_outermost_batch_size_is_tried_at_the_leaders_learning_rate() -> None:
    seen = trained(SMALL)
    best = min(seen, key=lambda s: s.run.losses[-1]).point
    expected = replace(best, batch_size=float(round(SMALL.batch_sizes[0] / 2)))
    assert beyond(state(seen)) == [(expected, Reason.BEYOND_EDGE)]


def test_values_of_the_grid_that_never_ran_come_before_those_beyond_it() -> None:
    largest = SMALL.batch_sizes[-1]
    seen = [s for s in trained(SMALL) if s.point.batch_size != largest]
    best = min(seen, key=lambda s: s.run.losses[-1]).point
    expected = (replace(best, batch_size=largest), Reason.BESIDE_LEADER)
    assert beyond(state(seen), larger=True) == [expected]


def test_where_a_point_failed_nothing_is_tried_farther_out() -> None:
    seen = trained(SMALL)
    ((point, _),) = beyond(state(seen))
    failed = Seen(point, wanted=0.3 * SMALL.tokens, failed=True)
    assert beyond(state([*seen, failed])) == []
    assert beyond(state([*seen, replace(failed, failed=False)])) == []


@pytest.mark.parametrize("additions", [0, 1, 2])
def test_no_more_points_are_added_than_may_be(additions: int) -> None:
    """Where a refusal names no size, the edge of every size is followed."""
    sizes = [size(name, n, d, batches=0.2) for name, n, d in (("s", 1e8, 8e9), ("l", 3e8, 2e10))]
    options = SearchOptions(fit=FIT, max_added_points=additions)
    seen = [s for each in sizes for s in trained(each)]
    now = State.of(sizes, seen, options, 0.0015)
    races = [(each, now.race_at(each)) for each in sizes]
    wanted = [
        decision
        for each, race in races
        if race is not None
        for decision in beyond_outermost(now, each, race, axis="batch_size", larger=True)
    ]
    assert [decision.added for decision in wanted] == [True, True]
    assert list(permitted(now, wanted)) == wanted[:additions]
