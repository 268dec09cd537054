"""What a sequential search decides from what it has seen."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from isoloss.design import Target
from isoloss.laws import FitOptions, Prediction, PredictionQuery, Run, fit_laws, predict
from isoloss.search import Point, Reason, SearchOptions, Seen, Size, StopReason, next_step
from isoloss.usual import FEWEST_RUNS
from tests.support.synthetic import Synthetic

FIT = FitOptions(bootstrap_samples=30)
OPTIONS = SearchOptions(fit=FIT)
TRUTH = Synthetic(rate_at=(1.2e-3, -0.4, 0.10), batch_at=(128.0, -0.05, 0.40))
SHARES = np.union1d(np.geomspace(0.02, 1.0, 20), [0.1, 0.3, 0.6])


def size(name: str, params: float, tokens: float, *, moved: float = 1.0) -> Size:
    """A 4 x 4 grid about its optimum, or with all learning rates `moved`."""
    factors = 2.0 ** np.arange(-1.5, 2.0)
    return Size(
        name,
        params,
        tokens,
        tuple(float(round(TRUTH.batch(params, tokens) * f)) for f in factors),
        tuple(float(moved * TRUTH.rate(params, tokens) * f) for f in factors),
    )


SMALL, LARGE = size("small", 1e8, 8e9), size("large", 3e8, 2e10)
SIZES = (SMALL, LARGE)
BY_NAME = {s.name: s for s in SIZES}
LOW = (size("small", 1e8, 8e9, moved=0.25), size("large", 3e8, 2e10, moved=0.25))
"""Their optima are beyond the largest learning rates."""
HIGH = (size("small", 1e8, 8e9, moved=20.0), size("large", 3e8, 2e10, moved=20.0))


def trained(point: Point, share: float, of: Size | None = None) -> Run:
    own = of or BY_NAME[point.size]
    tokens = SHARES[share * 1.001 >= SHARES] * own.tokens
    rate, batch = point.learning_rate, point.batch_size
    losses = np.array([TRUTH.loss(own.params, t, batch, rate) for t in tokens])
    return Run(str(point), own.params, batch, 2048, rate, tokens, losses)


def seen(point: Point, share: float, **changes: object) -> Seen:
    own = BY_NAME[point.size]
    return replace(Seen(point, trained(point, share), share * own.tokens), **changes)


def search(sizes, options, *, one_at_a_time=False, unavailable=(), diverges_above=np.inf):
    """All steps of a search, and what was seen at its end."""
    known: dict[Point, Seen] = {}
    own = {s.name: s for s in sizes}
    steps = []
    for _ in range(1000):
        lagging = [s for s in known.values() if s.tokens < 0.99 * s.wanted and not s.closed]
        if lagging:
            s = lagging[0]
            run = trained(s.point, s.wanted / own[s.point.size].tokens, own[s.point.size])
            run = replace(run, diverged=s.point.learning_rate > diverges_above)
            known[s.point] = replace(s, run=run)
            if one_at_a_time and len(lagging) > 1:
                assert next_step(sizes, list(known.values()), options).decisions == ()
            continue
        step = next_step(sizes, list(known.values()), options)
        steps.append(step)
        if step.stop is not None:
            return steps, known
        assert step.decisions, "neither a decision nor a stop, and nothing runs"
        for decision in step.decisions:
            before = known.get(decision.point, Seen(decision.point))
            failed = decision.point in unavailable
            known[decision.point] = replace(before, wanted=decision.tokens, failed=failed)
    raise AssertionError("the search does not end")


@cache
def searched(options):
    """The search of both sizes, for tests that look at the same one."""
    return search(SIZES, options)


def spent(known, sizes) -> float:
    flops = {s.name: s.point_flops / s.tokens for s in sizes}
    return sum(flops[s.point.size] * s.tokens for s in known.values())


def grids(sizes) -> float:
    return sum(s.grid_flops for s in sizes)


def answer(known, of=LARGE) -> Prediction:
    laws = fit_laws([s.run for s in known.values() if s.run is not None], FIT)
    assert laws.loss_compute.refusal is None
    found = predict(laws, PredictionQuery(total_flops=of.point_flops, params=of.params))
    assert isinstance(found, Prediction)
    return found


def test_a_search_costs_a_fraction_and_its_laws_find_the_optimum_and_place_checkpoints():
    steps, known = searched(OPTIONS)
    assert steps[-1].stop is StopReason.NOT_WORTH_ITS_COST
    assert spent(known, SIZES) < 0.35 * grids(SIZES)
    found = answer(known)
    assert found.learning_rate.value == pytest.approx(TRUTH.rate(3e8, 2e10), rel=0.1)
    assert found.batch_size_raw == pytest.approx(TRUTH.batch(3e8, 2e10), rel=0.15)


def test_the_end_says_what_the_next_best_point_would_cost_and_save():
    last = searched(OPTIONS)[0][-1]
    assert 0.0 < last.next_saves < last.next_flops < 0.1 * grids(SIZES)


def test_every_decision_goes_a_rung_further_and_what_is_chosen_saves_more_than_it_costs():
    reached = dict[Point, float]()
    for step in searched(OPTIONS)[0]:
        for decision in step.decisions:
            own = BY_NAME[decision.point.size]
            before = reached.get(decision.point, 0.0)
            assert decision.tokens > before
            further = own.token_flops * (decision.tokens - before)
            assert decision.flops == pytest.approx(further, rel=2e-3)
            reached[decision.point] = decision.tokens
        if step.decisions:
            assert {d.reason for d in step.decisions} == {Reason.LOWERS_REGRET}
            saved, cost = (sum(getattr(d, n) for d in step.decisions) for n in ("saves", "flops"))
            assert saved > cost


def test_a_larger_target_is_worth_more_runs():
    costs = []
    for times in (1.0, 1000.0):
        target = Target(3e8 * np.sqrt(times), 2e10 * np.sqrt(times))
        costs.append(spent(searched(replace(OPTIONS, target=target))[1], SIZES))
    assert costs[0] < 0.7 * costs[1]


@pytest.mark.parametrize("jobs", [1, 5])
def test_no_more_points_are_chosen_at_once_than_can_be_trained(jobs):
    steps, known = searched(replace(OPTIONS, jobs=jobs))
    assert max(len(step.decisions) for step in steps) == jobs
    assert spent(known, SIZES) < 0.4 * grids(SIZES)


def test_nothing_is_decided_while_a_point_is_on_its_way():
    known = [seen(p, 0.1) for p in SMALL.points]
    known[3] = replace(known[3], wanted=0.3 * SMALL.tokens)
    assert next_step(SIZES, known, OPTIONS) == next_step(SIZES, known[:4], OPTIONS)
    step = next_step(SIZES, known, OPTIONS)
    assert (step.decisions, step.stop) == ((), None)


def test_the_same_observations_in_any_order_give_the_same_step():
    known = [seen(p, 0.3) for p in SMALL.points]
    assert next_step(SIZES, known, OPTIONS) == next_step(SIZES[::-1], known[::-1], OPTIONS)


def test_points_that_arrive_one_by_one_lead_to_the_same_decisions():
    one_by_one, _ = search(SIZES, OPTIONS, one_at_a_time=True)
    assert searched(OPTIONS)[0] == one_by_one


def test_parameters_as_the_trainer_counts_them_need_not_be_those_of_the_size():
    """The operator counts before it trains."""
    known = [seen(p, 0.3) for s in SIZES for p in s.points]
    counted = [replace(s, run=replace(s.run, params=1.01 * s.run.params)) for s in known]
    step = next_step(SIZES, counted, OPTIONS)
    assert {d.point for d in step.decisions} & {
        d.point for d in next_step(SIZES, known, OPTIONS).decisions
    }


def test_one_size_alone_ends_although_no_laws_answer():
    steps, known = search((SMALL,), OPTIONS)
    assert steps[-1].stop is StopReason.NOT_WORTH_ITS_COST
    assert spent(known, (SMALL,)) < 0.7 * SMALL.grid_flops


# ---------------------------------------------------------------------------- beyond the grids


def test_an_optimum_on_the_edge_adds_points_beyond_it_and_no_more_than_allowed():
    steps, known = search(LOW, OPTIONS)
    added = [d for step in steps for d in step.decisions if d.added]
    assert 0 < len(added) <= OPTIONS.max_added_points
    assert {d.reason for d in added} <= {Reason.BEYOND_EDGE, Reason.COMPLETES_LAWS}
    largest = {s.name: max(s.learning_rates) for s in LOW}
    assert all(d.point.learning_rate > largest[d.point.size] for d in added)
    assert answer(known).learning_rate.value == pytest.approx(TRUTH.rate(3e8, 2e10), rel=0.2)


def test_without_leave_to_add_points_nothing_is_added():
    steps, _ = search(far(1 / 8), replace(OPTIONS, max_added_points=0))
    assert not [d for step in steps for d in step.decisions if d.added]
    assert steps[-1].stop is StopReason.NOTHING_LEFT


def far(factor: float) -> tuple[Size, ...]:
    return tuple(
        replace(s, learning_rates=tuple(factor * v for v in s.learning_rates)) for s in SIZES
    )


def test_grids_sixteen_times_off_are_answered_beyond_them():
    steps, known = search(far(1 / 16), replace(OPTIONS, max_added_points=12))
    assert steps[-1].stop is StopReason.NOT_WORTH_ITS_COST
    assert answer(known).learning_rate.value == pytest.approx(TRUTH.rate(3e8, 2e10), rel=0.2)


def test_grids_too_far_from_their_optima_are_not_trained_to_their_end():
    steps, known = search(far(1 / 64), replace(OPTIONS, max_added_points=4))
    assert steps[-1].stop is StopReason.NOTHING_LEFT
    assert spent(known, SIZES) < 0.3 * grids(SIZES)


@pytest.mark.parametrize("sizes", [HIGH, SIZES])
def test_where_the_whole_grid_diverges_smaller_learning_rates_are_tried_at_the_cheapest_size(
    sizes,
):
    """Wherever losses were least before they diverged."""
    lowest = min(sizes[0].learning_rates)
    steps, known = search(sizes, OPTIONS, diverges_above=0.3 * lowest)
    below = [d for step in steps for d in step.decisions if d.reason is Reason.BELOW_DIVERGED]
    assert {d.point.size for d in below} == {"small"}
    assert all(d.added and d.point.learning_rate < lowest for d in below)
    assert any(not s.closed for s in known.values())


@pytest.mark.parametrize("additions", [0, 4])
def test_where_everything_diverges_little_is_spent_and_the_end_says_so(additions):
    options = replace(OPTIONS, max_added_points=additions)
    steps, known = search(HIGH, options, diverges_above=0.0)
    assert (steps[-1].decisions, steps[-1].stop) == ((), StopReason.ALL_DIVERGED)
    assert spent(known, HIGH) < 0.1 * grids(HIGH)


def test_a_failed_point_is_left_alone():
    first = searched(OPTIONS)[0][0].decisions[0].point
    steps, _ = search(SIZES, OPTIONS, unavailable={first})
    assert first not in [d.point for step in steps[1:] for d in step.decisions]
    assert steps[-1].stop is StopReason.NOT_WORTH_ITS_COST


# -------------------------------------------------------------------------------------- budget


def test_the_budget_is_kept_and_named():
    budget = 0.15 * grids(SIZES)
    steps, known = search(SIZES, replace(OPTIONS, budget_flops=budget))
    assert steps[-1].stop is StopReason.BUDGET_EXHAUSTED
    assert 0.5 * budget < spent(known, SIZES) <= budget


def test_a_budget_below_what_any_law_takes_trains_nothing_and_names_it():
    """Three points of two sizes each, to where they are compared first, at the least."""
    first = next_step(SIZES, [], replace(OPTIONS, budget_flops=1.0))
    assert (first.decisions, first.stop) == ((), StopReason.BUDGET_EXHAUSTED)
    least = first.least_flops
    assert least >= 0.1 * FEWEST_RUNS * (SMALL.point_flops + LARGE.point_flops)
    short = next_step(SIZES, [], replace(OPTIONS, budget_flops=0.999 * least))
    assert (short.decisions, short.least_flops) == ((), least)
    enough = next_step(SIZES, [], replace(OPTIONS, budget_flops=1.001 * least))
    assert {d.point.size for d in enough.decisions} == {"small", "large"}
    assert (enough.stop, enough.least_flops) == (None, None)


def test_accelerator_time_below_what_any_law_takes_trains_nothing_and_is_named():
    paced = tuple(replace(s, seconds_per_flop=1e-14) for s in SIZES)
    short = next_step(paced, [], replace(OPTIONS, seconds_left=1.0))
    assert (short.decisions, short.stop) == ((), StopReason.BUDGET_EXHAUSTED)
    assert short.least_seconds == pytest.approx(1e-14 * short.least_flops)
    enough = next_step(paced, [], replace(OPTIONS, seconds_left=1.001 * short.least_seconds))
    assert enough.decisions
    flops = next_step(paced, [], replace(OPTIONS, budget_flops=1.0, seconds_left=1e9))
    assert flops.least_seconds is None, "it is not the time that is short"


def test_later_decisions_keep_to_the_accelerator_time_that_is_left():
    paced = tuple(replace(s, seconds_per_flop=1e-14) for s in SIZES)
    known = [seen(point, 0.1) for s in SIZES for point in s.points]
    least = min(d.flops for d in next_step(paced, known, OPTIONS).decisions) * 1e-14
    step = next_step(paced, known, replace(OPTIONS, seconds_left=1.5 * least))
    assert 0.0 < sum(decision.flops for decision in step.decisions) * 1e-14 <= 1.5 * least


def test_decisions_cost_the_whole_steps_that_runs_take():
    own = replace(SMALL, tokens=1e8, sequence_length=2048)
    for decision in next_step((own, LARGE), [], OPTIONS).decisions:
        if decision.point.size == "small":
            step = round(decision.point.batch_size) * 2048
            assert decision.flops == 6e8 * -(-10_000_000 // step) * step


def test_no_size_is_refused_as_such() -> None:
    with pytest.raises(ValueError, match=r"^sizes: at least one is needed"):
        next_step([], [], OPTIONS)


def test_sizes_far_below_those_of_published_laws_are_searched() -> None:
    small, large = size("small", 1e5, 4e6), size("large", 5e5, 8e6)
    steps, _ = search((small, large), OPTIONS)
    assert steps[-1].stop is not None
