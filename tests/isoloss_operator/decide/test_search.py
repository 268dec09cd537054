"""A sequential search in the operator: what it starts, stops and adds, what it says, and what survives."""

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from isoloss.design import Target
from isoloss.laws import Prediction, PredictionQuery, fit_laws, predict
from isoloss.search import Reason as SearchReason
from isoloss.search import StopReason
from isoloss_contract import ledger
from isoloss_operator.commands.costs import planned
from isoloss_operator.decide.choose import ENDINGS
from isoloss_operator.decide.fits import FitOutcome, FitRequest, PointDecision, SearchStep
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.points import PlannedPoint
from tests.support import builders
from tests.support.chance import Chance
from tests.support.models import example_model
from tests.support.search_simulator import NO_GRID, SearchSimulator, searched_spec
from tests.support.sweep_worlds import SEQUENTIAL, chosen, known
from tests.support.synthetic_trainer import optimum

SPEC = builders.sweep_spec(search=SEQUENTIAL)
POINTS = builders.points(SPEC)
FIRST, SECOND = POINTS[:2]
RUNG = round(0.3 * FIRST.proxy.tokens)
PASSES = 400


def decision(point: PlannedPoint, **changes: Any) -> PointDecision:
    """Run a point to RUNG."""
    return replace(chosen(point), **{"tokens": RUNG, **changes})


def asked(world: ObservedSweep) -> FitRequest:
    request = decide_sweep(world).fit
    assert request is not None
    return request


def answered(
    world: ObservedSweep, *decisions: PointDecision, ended: str = "", **more: float
) -> ObservedSweep:
    """The world once the search has answered the step that is due."""
    request = asked(world)
    assert request.search is not None
    step = SearchStep(decisions, ended, **more)
    return replace(world, fit=FitOutcome(request.inputs, laws=None, step=step))


def begun(spec: Mapping[str, Any] = SPEC, **changes: Any) -> ObservedSweep:
    """A sweep whose ledger knows its points."""
    return known(builders.observed(spec), **changes)


def at_first_rung() -> ObservedSweep:
    """Two points came to the first rung."""
    world = known(answered(begun(), decision(FIRST), decision(SECOND)), fit=None)
    found = {p.key: builders.result(p, tokens=RUNG, wanted_tokens=RUNG) for p in (FIRST, SECOND)}
    return known(replace(world, results=found))


def with_cost(world: ObservedSweep, flops: float) -> ObservedSweep:
    """The world in which an attempt of the first point cost so much."""
    dear = tuple(
        replace(r, spent=ledger.Spend(flops)) if r.key == FIRST.key else r
        for r in builders.ledger_of(world).points
    )
    return replace(world, ledger=builders.ledger_of(world).replace(points=dear))


def records(world: ObservedSweep) -> dict[str, ledger.PointRecord]:
    return {record.name: record for record in builders.ledger_of(world).points}


def started(plan: SweepPlan) -> dict[str, int]:
    """Tokens that the Jobs being created are to train to, by point key."""
    return {request.labels["isoloss.dev/key"]: request.task.tokens for request in plan.create}  # type: ignore[union-attr]


def test_chosen_points_train_to_their_rung_and_no_farther() -> None:
    world = answered(begun(), decision(FIRST), decision(SECOND))
    deciding = decide_sweep(world)
    assert not deciding.create, "the ledger has it first"
    assert deciding.requeue_after == 0.0
    plan = decide_sweep(builders.after(world, deciding))
    assert started(plan) == {FIRST.key: RUNG, SECOND.key: RUNG}
    assert builders.condition(plan, "Ready")[1] == "Training"
    assert [event.reason for event in deciding.events if event.reason == "SearchStep"]


def test_a_point_at_its_rung_is_done_until_more_is_wanted_of_it() -> None:
    world = at_first_rung()
    assert records(world)[FIRST.name].state is ledger.PointState.SUCCEEDED
    assert not decide_sweep(world).create
    more = answered(world, decision(FIRST, tokens=FIRST.proxy.tokens, reason="CompletesLaws"))
    plan = decide_sweep(known(more))
    assert started(plan) == {FIRST.key: FIRST.proxy.tokens}
    assert not plan.delete
    fit = asked(known(at_first_rung()))
    assert [point.finished for point in fit.points] == [False, False]


def test_the_page_of_a_search_gets_the_status_with_what_was_chosen() -> None:
    world = known(at_first_rung())
    status = decide_sweep(world).status.document()
    assert asked(world).resource["status"] == status
    assert status["search"]["notChosen"] > 0


def test_a_step_says_what_it_chose_what_that_costs_and_saves_until_the_next() -> None:
    beyond = decision(FIRST, batch_size=32, reason="BeyondEdge", added=True)
    needed = decision(SECOND, tokens=2 * RUNG, reason="CompletesLaws", saves=0.0)
    world = answered(at_first_rung(), decision(FIRST, tokens=2 * RUNG), needed, beyond)
    plan = decide_sweep(world)
    says = (
        f"2 chosen, for 2e12 FLOPs, expected to save 2e12 of the target's: {FIRST.name} (LowersRegret), "
        f"{SECOND.name} (CompletesLaws); 1 added, for 1e12 FLOPs, expected to save 2e12 of the target's: "
        f"{FIRST.proxy.name} with 32 sequences at 0.001 (BeyondEdge)"
    )
    assert [event.message for event in plan.events if event.reason == "SearchStep"] == [says]
    assert plan.status.search is not None
    assert plan.status.search.message == says
    later = decide_sweep(builders.after(world, plan))
    assert later.status.search is not None
    assert later.status.search.message == says
    assert "SearchStep" not in [event.reason for event in later.events]


def test_an_added_point_trains_like_one_of_the_grid_and_counts_as_added() -> None:
    beyond = decision(FIRST, batch_size=32, reason="BeyondEdge", added=True)
    world = known(answered(at_first_rung(), beyond))
    (added,) = builders.ledger_of(world).additions
    assert (added.batch_size, added.reason) == (32, "BeyondEdge")
    plan = decide_sweep(world)
    assert list(started(plan).values()) == [RUNG]
    assert plan.status.search is not None
    assert (plan.status.search.added, plan.status.points.total) == (1, 9)
    whole = sum(point.flops for point in POINTS)
    assert float(plan.status.planned_flops) == pytest.approx(whole, rel=1e-5), "of the grid"


def test_the_end_of_the_search_ends_the_sweep_and_says_why_and_what_the_next_point_would_cost() -> (
    None
):
    figures = {"next_flops": 3.1e18, "next_saves": 9e17}
    world = answered(at_first_rung(), ended="NotWorthItsCost", **figures)
    plan = decide_sweep(world)
    status, reason, message = builders.condition(plan, "Progressing")
    assert (status, reason) == ("False", "Finished")
    assert re.sub(r"\([\d.e]+ acc", "(1 acc", message) == (
        "The search is over (NotWorthItsCost): the next best point would cost 3.1e18 FLOPs (1 accelerator hours) and save "
        "9e17 FLOPs (1 accelerator hours)."
    )
    search = plan.status.search
    assert search is not None
    assert (search.ended, search.paused, search.not_chosen) == ("NotWorthItsCost", 2, 6)
    whole = sum(point.flops for point in POINTS)
    spent = 6 * FIRST.proxy.parameters.active * 2 * RUNG
    assert float(search.saved_flops) == pytest.approx(whole - spent, rel=1e-3)
    assert not plan.create
    assert plan.fit is None
    told = [event.message for event in plan.events if event.reason == "SearchStep"]
    assert told == [search.message] == [message]
    assert not decide_sweep(builders.after(world, plan)).events, "it is told once"


def test_the_search_is_told_its_target_its_jobs_and_from_where_runs_compare() -> None:
    plain = asked(begun()).search
    assert plain is not None
    assert (plain.options.target, plain.options.jobs) == (None, 4)
    assert plain.options.max_added_points == 6
    unplaced = asked(begun(UNPLACED)).search
    assert unplaced is not None
    assert unplaced.options.max_added_points == 12, "each size without a grid may be extended"
    assert plain.sizes[0].first_tokens == 2 * builders.parsed(SPEC).evaluation.first_tokens  # type: ignore[union-attr]
    asks = {"target": {"parameters": 10**9, "tokens": 10**11}, **SEQUENTIAL}
    found = asked(begun(builders.sweep_spec(search=asks, parallelism=20))).search
    assert found is not None
    assert (found.options.target, found.options.jobs) == (Target(10**9, 10**11), 20)
    late = {**SPEC["evaluation"], "firstTokens": FIRST.proxy.tokens - 1}
    late_search = asked(begun(builders.sweep_spec(search=SEQUENTIAL, evaluation=late))).search
    assert late_search is not None
    assert late_search.sizes[0].first_tokens == FIRST.proxy.tokens, "at their ends, if not before"


def test_an_answer_to_another_question_changes_nothing() -> None:
    """A process that was killed and another that asks again must not follow the same step twice."""
    world = answered(begun(), decision(FIRST))
    once = known(world)
    assert once.ledger != world.ledger
    twice = known(once)
    assert twice.ledger == once.ledger


def test_exhaustive_finishes_what_was_paused_or_never_chosen() -> None:
    world = at_first_rung()
    spec = builders.sweep_spec(parallelism=20)
    switched = replace(world, spec=builders.parsed(spec), generation=2)
    plan = decide_sweep(switched)
    assert started(plan) == {point.key: point.proxy.tokens for point in POINTS}
    assert plan.status.search is None
    assert all(
        r.intent == ledger.Intent() for r in records(builders.after(switched, plan)).values()
    )


def test_a_switch_to_sequential_stops_what_runs_and_keeps_what_is_done() -> None:
    first = known(builders.observed(results={FIRST.key: builders.result(FIRST)}), results={})
    running = replace(first, jobs=(builders.job(SECOND),))
    switched = replace(running, spec=builders.parsed(SPEC), generation=2)
    plan = decide_sweep(switched)
    assert [deletion.name for deletion in plan.delete] == [builders.job(SECOND).name]
    left = records(builders.after(switched, plan))
    assert left[FIRST.name].trained_for == FIRST.proxy.tokens
    assert asked(known(builders.after(switched, plan), jobs=())).search is not None


def test_a_spent_budget_pauses_and_a_larger_one_goes_on_to_the_same_rung() -> None:
    chosen = known(answered(begun(), decision(FIRST), decision(SECOND)))
    small = builders.sweep_spec(search=SEQUENTIAL, budget={"flops": "1e14"})
    spent = replace(with_cost(replace(chosen, status={}), 1e15), spec=builders.parsed(small))
    paused = known(spent)
    assert records(paused)[SECOND.name].intent == ledger.Intent(
        ledger.IntentAction.PAUSE, RUNG, "BudgetExhausted"
    )
    assert builders.condition(decide_sweep(paused), "Progressing")[1] == "BudgetExhausted"
    large = builders.sweep_spec(search=SEQUENTIAL, budget={"flops": "1e20"})
    raised = replace(paused, spec=builders.parsed(large), generation=2)
    plan = decide_sweep(raised)
    assert started(plan) == {FIRST.key: RUNG, SECOND.key: RUNG}
    goes_on = ledger.Intent(ledger.IntentAction.RUN, RUNG, "BudgetRaised")
    assert records(builders.after(raised, plan))[SECOND.name].intent == goes_on


def test_a_search_that_a_lowered_budget_ends_says_so_until_it_is_raised() -> None:
    """Every chosen point came as far as it was to: nothing is unaffordable, and nothing more is chosen."""
    lowered = builders.sweep_spec(search=SEQUENTIAL, budget={"flops": "1e14"})
    dear = with_cost(at_first_rung(), 1e15)
    world = known(replace(dear, spec=builders.parsed(lowered), generation=2))
    plan = decide_sweep(world)
    assert plan.status.search is not None
    assert plan.status.search.ended == "BudgetExhausted"
    assert builders.condition(plan, "Progressing")[:2] == ("False", "BudgetExhausted")
    again = decide_sweep(replace(world, spec=builders.parsed(SPEC), generation=3))
    assert again.status.search is not None
    assert again.status.search.ended == ""
    assert again.fit is not None
    assert again.fit.search is not None


def test_where_no_point_is_pending_a_spent_budget_is_still_named_as_the_end_of_the_search() -> (
    None
):
    found = {p.key: builders.result(p, tokens=RUNG, wanted_tokens=RUNG) for p in POINTS}
    chosen = known(answered(begun(), *(decision(point) for point in POINTS)), fit=None)
    dear = with_cost(known(replace(chosen, results=found)), 1e15)
    lowered = builders.sweep_spec(search=SEQUENTIAL, budget={"flops": "1e14"})
    plan = decide_sweep(replace(dear, spec=builders.parsed(lowered), generation=2))
    status, _, message = builders.condition(plan, "Progressing")
    assert status == "False"
    assert "no further point fits into spec.budget" in message


def test_words_and_shares_are_those_of_the_search() -> None:
    assert set(ENDINGS) == {str(reason) for reason in StopReason}
    assert "NotChosenYet" not in {str(reason) for reason in SearchReason}


# --------------------------------------------------------------------------- whole sweeps in memory


def ended(kills: float, seed: int, **changes: Any) -> SearchSimulator:
    """A world after the last pass of its search."""
    world = SearchSimulator(spec=searched_spec(**changes))
    return run_to_end(Chance(random.Random(seed), world, kills=kills))


def run_to_end(chance: Chance[SearchSimulator]) -> SearchSimulator:
    for _ in range(PASSES):
        plan = chance.run_operator()
        if plan is not None and plan.status.search is not None and plan.status.search.ended:
            return chance.simulator
        chance.let_time_pass(400.0)
    raise AssertionError(f"not over after {PASSES} passes")


def wants(world: SearchSimulator) -> dict[str, tuple[ledger.Intent, str]]:
    return {r.name: (r.intent, r.trajectory_sha256) for r in builders.ledger_of(world).points}


@pytest.mark.parametrize("kills", [(2,), pytest.param((2, 3, 4, 5), marks=pytest.mark.whole)])
def test_it_saves_and_ends_the_same_wherever_the_operator_is_killed(
    kills: tuple[int, ...],
) -> None:
    """Steps follow from the ledger and the trajectories alone; no point trains a token twice, which
    Simulator asserts as Jobs start."""
    calm = ended(kills=0.0, seed=1)
    search = calm.status["search"]
    assert search["ended"] in ENDINGS
    assert calm.ledger is not None
    planned = float(calm.status["plannedFlops"])
    assert float(search["savedFlops"]) > 0.2 * planned
    for seed in kills:
        assert wants(ended(kills=0.2, seed=seed)) == wants(calm)


@pytest.mark.parametrize("share", [0.9999, 1.0001])
def test_a_budget_has_room_for_all_that_a_search_must_train_or_for_nothing(share: float) -> None:
    """Counted in whole steps, as when points are admitted."""
    short = {
        "proxies": [
            {"name": name, "model": {"config": example_model(f"dense-{name}")}, "tokens": tokens}
            for name, tokens in (("tiny", 850_000), ("small", 1_700_000))
        ],
        "evaluation": {"firstTokens": 20_000},
    }
    first = planned(builders.parsed(searched_spec(**short, budget={"flops": "1"})))
    assert first.first_step is not None
    assert first.first_step.least_flops is not None
    budget = {"flops": f"{share * first.first_step.least_flops:.9e}".replace("+", "")}
    world = ended(kills=0.0, seed=1, **short, budget=budget)
    assert any(world.trained.values()) is (share > 1)
    assert world.status["search"]["ended"] == "BudgetExhausted"


def test_accelerator_hours_below_what_a_search_must_train_start_nothing() -> None:
    """By the pace that isoloss plan assumes, until a point has told how fast they are."""
    large: dict[str, Any] = {
        "proxies": [
            {"name": name, "model": {"config": example_model(f"dense-{name}")}, "tokens": tokens}
            for name, tokens in (("100m", 2_000_000_000), ("500m", 4_000_000_000))
        ],
        "evaluation": {"firstTokens": 10_000_000},
        "budget": {"acceleratorHours": 1},
    }
    world = ended(kills=0.0, seed=1, **large)
    assert world.status["search"]["ended"] == "BudgetExhausted"
    assert not world.trained
    told = {each["type"]: each["message"] for each in world.status["conditions"]}
    assert "accelerator hours: raise spec.budget above that" in told["Progressing"]
    first = planned(builders.parsed(searched_spec(**large))).first_step
    assert first is not None
    assert first.least_seconds is not None
    enough = {"acceleratorHours": round(first.least_seconds / 3600) + 1}
    begun_with = planned(builders.parsed(searched_spec(**{**large, "budget": enough}))).first_step
    assert begun_with is not None
    assert begun_with.decisions


# --------------------------------------------------------------------------------- without a grid

UNPLACED = builders.sweep_spec(**{**NO_GRID, "search": SEQUENTIAL})


def test_places_are_in_the_ledger_and_in_the_status_before_anything_trains() -> None:
    plan = decide_sweep(builders.observed(UNPLACED))
    assert not plan.create
    assert [each.source for each in builders.ledger_of(plan).placements] == [
        "published:step-law"
    ] * 2
    assert len(builders.ledger_of(plan).points) == 18
    assert plan.status.search is not None
    first = plan.status.search.placed[0]
    assert (first.proxy, first.source) == ("small", "published:step-law")
    places = {(f"{r.learning_rate:g}", r.batch_size) for r in builders.ledger_of(plan).points[:9]}
    assert places == {
        (f"{float(a):g}", b) for a in first.learning_rates for b in first.batch_sizes
    }


def test_a_size_that_was_renamed_goes_on_where_it_was() -> None:
    """Also with more tokens, and with the points that the search added to it."""
    world = begun(UNPLACED)
    added = ledger.AddedPoint("small", 3, 1.7e-3, "ExtendGrid")
    world = known(replace(world, ledger=builders.ledger_of(world).replace(additions=(added,))))
    small, large = UNPLACED["proxies"]
    renamed = [{**small, "name": "renamed", "tokens": 3 * small["tokens"]}, large]
    after_ = known(replace(world, spec=builders.parsed({**UNPLACED, "proxies": renamed})))
    assert keys(after_) == keys(world)
    assert [a.proxy for a in builders.ledger_of(after_).additions] == ["renamed"]
    assert [p.proxy for p in builders.ledger_of(after_).placements] == ["renamed", large["name"]]
    assert builders.ledger_of(after_).former_placements == ()


def test_a_size_that_returns_goes_on_where_it_was() -> None:
    """Removed, or given a grid, and put back with more tokens, for which the law has another optimum."""
    world = begun(UNPLACED)
    small, large = UNPLACED["proxies"]
    without = known(replace(world, spec=builders.parsed({**UNPLACED, "proxies": [large]})))
    assert [p.proxy for p in builders.ledger_of(without).former_placements] == [small["name"]]
    back = [{**small, "tokens": 3 * small["tokens"]}, large]
    returned = known(replace(without, spec=builders.parsed({**UNPLACED, "proxies": back})))
    assert keys(returned) == keys(world)


def keys(world: ObservedSweep) -> list[str]:
    """Of the points in planned order, which do not depend on the names of their sizes."""
    return [record.key for record in builders.ledger_of(world).points]


def test_a_search_without_a_grid_finds_the_optimum_and_ends_the_same_wherever_it_is_killed() -> (
    None
):
    calm = ended(kills=0.0, seed=1, **NO_GRID)
    assert calm.status["search"]["ended"] == "NotWorthItsCost"
    laws = fit_laws(calm.runs())
    for name, tokens in (("small", 4e6), ("large", 8e6)):
        (params,) = {
            r.flops_per_token / 6 for r in builders.ledger_of(calm).points if r.proxy == name
        }
        rate, batch = optimum(params, tokens)
        query = PredictionQuery(total_flops=6 * params * tokens, params=params)
        found = predict(laws, query)
        assert isinstance(found, Prediction)
        assert 0.7 < found.learning_rate.value / rate < 1.4
        assert 0.7 < found.batch_size_raw / batch < 1.4
    assert wants(ended(kills=0.2, seed=2, **NO_GRID)) == wants(calm)


# ------------------------------------------------------------------------ a plan that changes


def small() -> Chance[SearchSimulator]:
    """Six points of one size, which gives no laws: the search takes about thirty passes, adds four and ends with nothing left."""
    spec = searched_spec(
        proxies=[
            {"name": "tiny", "model": {"config": example_model("dense-tiny")}, "tokens": 4_000_000}
        ],
        grid={"batchSizes": [6, 18, 54], "learningRates": ["1.2e-3", "2.4e-3"]},
        parallelism=4,
    )
    return Chance(random.Random(1), SearchSimulator(spec=spec), trouble=0.0, kills=0.0)


@pytest.mark.parametrize("passes", [5, pytest.param(17, marks=pytest.mark.whole), 26])
def test_a_search_whose_ledger_is_lost_ends_and_trains_no_token_twice(passes: int) -> None:
    """It decides again from the results in the store, which tell more by now than when it decided first: it may choose others.
    Simulator asserts as Jobs start that they do not repeat what is done."""
    chance = small()
    world = chance.simulator
    for _ in range(passes):
        chance.run_operator()
        chance.let_time_pass(400.0)
    world.ledger, world.fit = None, None
    run_to_end(chance)
    assert world.status["search"]["ended"] in ENDINGS


def test_what_is_trained_is_of_use_to_a_search_that_begins_as_tokens_are_raised() -> None:
    """It costs the search nothing, and points that it does not choose tell as much as before."""
    found = {point.key: builders.result(point) for point in POINTS}
    world = known(builders.observed(results=found), results={})
    longer = [{**each, "tokens": 2 * each["tokens"]} for each in SPEC["proxies"]]
    edited = builders.parsed(builders.sweep_spec(search=SEQUENTIAL, proxies=longer))
    request = asked(known(replace(world, spec=edited, generation=2)))
    assert request.search is not None
    assert {point.key for point in request.points} == found.keys()
    assert not any(point.finished for point in request.points)


def test_points_that_a_spent_budget_paused_wait_for_the_search_that_an_edit_begins() -> None:
    begun_ = known(builders.observed(builders.sweep_spec(budget={"flops": "1e11"})))
    spent = known(with_cost(begun_, 1e12))
    assert {r.intent.reason for r in records(spent).values()} == {ledger.BUDGET_SPENT}
    searched = builders.parsed(builders.sweep_spec(search=SEQUENTIAL, budget={"flops": "9e15"}))
    plan = decide_sweep(replace(spent, spec=searched, generation=2))
    assert started(plan) == {}
    assert {r.intent.reason for r in builders.ledger_of(plan).points} == {ledger.NOT_CHOSEN}
