"""What a sweep has spent and may still spend: edits, running attempts and lost ledgers included."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from isoloss_contract.ledger import IntentAction, Ledger
from isoloss_contract.reading import ABSENT, Unanswered, Unreadable
from isoloss_contract.records import Claimant, ExitCode
from isoloss_operator.decide.choose import assumed_seconds_per_flop
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import LABEL_KEY, ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import Event, SweepPlan
from isoloss_operator.decide.reads import sweep_reads
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.flops import six_nd
from tests.support.builders import (
    NOW,
    UID,
    after,
    complete,
    condition,
    failed,
    job,
    ledger_of,
    observed,
    parsed,
    points,
    progress,
    result,
    sweep_spec,
)
from tests.support.models import example_model
from tests.support.sweep_worlds import (
    FIRST,
    POINTS,
    all_done,
    flops_of,
    known,
    refused,
    started,
    training,
)


def edited(world: ObservedSweep, **changes: Any) -> ObservedSweep:
    return replace(world, spec=parsed(sweep_spec(**changes)), generation=2)


def without_first_rate(world: ObservedSweep) -> ObservedSweep:
    return edited(world, grid={"batchSizes": [8, 16], "learningRates": ["2e-3", "4e-3"]})


def cost(count: int) -> float:
    return sum(point.flops for point in POINTS[:count])


OWN = {FIRST.key: result(FIRST, claimant=Claimant(sweep_uid=UID, attempt=1))}
HALF = {FIRST.key: progress(FIRST, FIRST.tokens // 2)}


# ------------------------------------------------------------------------------------ what is spent


WHOLE = {FIRST.key: progress(FIRST, FIRST.tokens)}
OTHERS = {FIRST.key: result(FIRST, claimant=Claimant(sweep_uid="another", attempt=1))}
WORKING = job(FIRST, working_since=NOW - timedelta(hours=1))


@pytest.mark.parametrize(
    ("ended", "found", "share", "hours"),
    [
        (WORKING, {"progress": HALF}, 0.5, "1"),
        (complete(FIRST), {"progress": WHOLE}, 1.0, "0"),
        (complete(FIRST), {"results": OWN}, 1.0, "0"),
        (job(FIRST), {"results": OTHERS}, 0.0, "0"),
    ],
    ids=["runs", "has ended and reported", "has its result", "has another sweep's result"],
)
def test_a_point_that_an_edit_drops_has_cost_what_it_trained(
    ended: ObservedJob, found: dict[str, Any], share: float, hours: str
) -> None:
    """Before the end of its Job is recorded and afterwards: what was spent never shrinks."""
    world = without_first_rate(training(jobs=(ended,)))
    reads = sweep_reads(world, frozenset())
    assert FIRST.key in (reads.results if share == 1.0 else reads.progress)
    world = replace(world, **found)
    plan = decide_sweep(world)
    expected = six_nd(FIRST.proxy.parameters, share * FIRST.tokens)
    assert spent_in(plan) == pytest.approx(expected)
    assert plan.status.accelerator_hours == hours
    assert [record.key for record in ledger_of(plan).former] == [FIRST.key]
    assert told(known(world, jobs=(), progress={}, results={})) == pytest.approx(expected, 1e-5)


def test_a_succeeded_job_without_a_usable_result_has_cost_what_it_reported() -> None:
    """Its result is missing or unreadable; the FLOPs are spent all the same."""
    whole = {FIRST.key: progress(FIRST, FIRST.tokens)}
    ended = complete(FIRST, ended=NOW - timedelta(minutes=2))
    world = training(jobs=(ended,), progress=whole)
    assert FIRST.key in sweep_reads(world, frozenset()).progress
    for found in ({}, {FIRST.key: Unreadable("result.json: loss: nan")}):
        plan = decide_sweep(replace(world, results=found))
        assert ledger_of(plan).points[0].attempts.ended == 1
        assert spent_in(plan) == six_nd(FIRST.proxy.parameters, FIRST.tokens)


@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("pods", [(), (FIRST.key,)], ids=["it is gone", "its pod still ends"])
def test_a_job_that_is_deleted_by_hand_has_cost_what_it_reported(
    is_dropped: bool, pods: tuple[str, ...]
) -> None:
    """Also where an edit drops its point in the same moment. Another sweep's report costs this one nothing."""
    gone = training(jobs=(), orphaned_pods=pods)
    gone = without_first_rate(gone) if is_dropped else gone
    assert FIRST.key in sweep_reads(gone, frozenset({FIRST.key})).progress
    assert FIRST.key not in sweep_reads(gone, frozenset()).progress
    plan = decide_sweep(world := replace(gone, progress=HALF))
    assert spent_in(plan) == six_nd(FIRST.proxy.parameters, FIRST.tokens // 2) > 0
    (record,) = [r for r in (*ledger_of(plan).points, *ledger_of(plan).former) if r.attempts.ended]
    assert (record.attempts.interruptions, record.attempts.charged) == (1, {})
    assert told(known(world)) == told(world), "it is counted once"
    again = [request for request in plan.create if request.labels[LABEL_KEY] == FIRST.key]
    assert [each.attempt for each in again] == ([] if is_dropped or pods else [2])
    theirs = HALF[FIRST.key].model_copy(
        update={"claimant": Claimant(sweep_uid="another", attempt=1)}
    )
    assert told(replace(gone, progress={FIRST.key: theirs})) == 0
    if not is_dropped:
        record = ledger_of(decide_sweep(replace(gone, progress=WHOLE, results=OWN))).points[0]
        assert record.spent.flops == six_nd(FIRST.proxy.parameters, FIRST.tokens)
        assert (record.attempts.ended, record.attempts.last_failure) == (1, "")


def spent_in(plan: SweepPlan) -> float:
    """As the ledger has it; the status rounds."""
    found = ledger_of(plan).spent.flops
    assert float(plan.status.spent_flops) == pytest.approx(found, rel=1e-4)
    return found


def test_a_point_that_returns_to_the_grid_goes_on_where_it_was() -> None:
    """Its attempts are numbered on, so that no former pod is mistaken for a new one."""
    gone = known(without_first_rate(known(training(jobs=(failed(FIRST),)))), jobs=())
    back = decide_sweep(replace(gone, spec=parsed(sweep_spec()), generation=3))
    record = next(r for r in ledger_of(back).points if r.key == FIRST.key)
    assert record.attempts.ended == 1
    assert ledger_of(back).former == ()


def test_a_dropped_point_that_never_ran_leaves_nothing_behind() -> None:
    plan = decide_sweep(without_first_rate(known(observed())))
    assert ledger_of(plan).former == ()


LOST = {
    "absent": (ABSENT, f"There is no sweeps/demo-{UID}/ledger.jsonl.gz any more."),
    "unreadable": (Unreadable("ledger.jsonl.gz: ends early"), "ledger.jsonl.gz: ends early"),
    "another's": (
        Ledger(sweep="demo", namespace="research", uid="another"),
        "It is the ledger of the resource with the uid another.",
    ),
}


@pytest.mark.parametrize(("lost", "why"), LOST.values(), ids=LOST)
def test_with_a_lost_ledger_the_status_says_that_what_was_spent_is_unknown(
    lost: Any, why: str
) -> None:
    """An event once, a line in the status for as long as the new ledger is there. Results are found again."""
    results = {p.key: result(p) for p in POINTS[:2]}
    done = known(training(jobs=tuple(complete(p) for p in POINTS[:2]), results=results))
    world = replace(done, ledger=lost, jobs=(), results=results)
    plan = decide_sweep(world)
    assert plan.status.points.succeeded == 2
    assert plan.status.spent_flops == "0"
    said = plan.status.warnings[0]
    assert said.startswith("A new ledger was begun at 2026-")
    assert why in said
    kept = [each.new_path for each in plan.quarantined]
    assert all(
        f" (the old one is {path.rpartition('/')[2]}): earlier spend, " in said for path in kept
    )
    assert bool(kept) == (lost is not ABSENT)
    assert [each for each in plan.events if each.reason == "LedgerLost"] == [
        Event("Warning", "LedgerLost", said)
    ]
    later = decide_sweep(known(world))
    assert later.status.warnings[0] == said
    assert not [each for each in later.events if each.reason == "LedgerLost"]


def test_the_first_ledger_of_a_sweep_is_no_loss() -> None:
    plan = decide_sweep(observed())
    assert ledger_of(plan).lost is None
    assert not plan.status.warnings


def test_each_unreadable_ledger_is_quarantined_under_a_name_of_its_own() -> None:
    first = observed(ledger=Unreadable("truncated"))
    later = replace(first, now=NOW + timedelta(hours=1))
    names = {decide_sweep(world).quarantined[0].new_path for world in (first, later)}
    assert len(names) == 2


# ------------------------------------------------------------------------------------ the budget


def over_budget() -> ObservedSweep:
    """Three running points are at their ends; the budget is that of two."""
    ends = {p.key: progress(p, p.tokens) for p in POINTS[:3]}
    return edited(training(progress=ends), budget={"flops": f"{cost(2):.6e}"})


def test_points_stopped_for_the_budget_are_paused_in_the_ledger() -> None:
    """A restart must not start them again."""
    plan = decide_sweep(over_budget())
    intents = [record.intent for record in ledger_of(plan).points]
    assert {intent.action for intent in intents} == {IntentAction.PAUSE}
    assert {intent.reason for intent in intents} == {"BudgetExhausted"}
    assert [r.attempts.interruptions for r in ledger_of(plan).points[:3]] == [1, 1, 1]
    stopped = known(over_budget(), jobs=(), progress={})
    plan = decide_sweep(stopped)
    assert plan.create == ()
    assert condition(plan, "Progressing")[1] == "BudgetExhausted"
    assert "8 points are not finished" in condition(plan, "Progressing")[2]


def test_running_attempts_take_what_they_were_started_for_when_tokens_are_lowered() -> None:
    """Their Jobs train on, and the budget has no room for the others beside that."""
    spec = sweep_spec(parallelism=4)
    small = [point for point in POINTS if point.proxy.name == "small"]
    tiny = {p.key: result(p) for p in POINTS if p.proxy.name == "tiny"}
    running = {p.key: progress(p, 600_000) for p in small[:2]}
    world = known(observed(spec, results=tiny), results={})
    world = known(world, jobs=tuple(map(job, small[:2])), progress=running)
    lower = [dict(sweep_spec()["proxies"][0]), {**sweep_spec()["proxies"][1], "tokens": 700_000}]
    rest = points(sweep_spec(proxies=lower))[-1].flops
    cheap = cost(4) + 2 * small[0].flops * 0.35 + 2 * rest
    lowered = edited(world, parallelism=4, proxies=lower, budget={"flops": f"{cheap:.6e}"})
    plan = decide_sweep(lowered)
    assert plan.create == () == plan.delete
    assert "leaves no room" in " ".join(plan.status.warnings)
    dear = cost(4) + 2 * small[0].flops + 2.01 * rest
    enough = edited(world, parallelism=4, proxies=lower, budget={"flops": f"{dear:.6e}"})
    assert len(decide_sweep(enough).create) == 2


def test_a_larger_budget_continues_what_was_stopped() -> None:
    stopped = known(over_budget(), jobs=(), progress={})
    plan = decide_sweep(edited(stopped, budget={"flops": f"{cost(8) * 2:.6e}"}))
    assert [request.attempt for request in plan.create] == [2, 2, 2]
    assert {r.intent.action for r in ledger_of(plan).points} == {IntentAction.RUN}


def test_results_that_a_budget_lets_no_point_go_beyond_are_fitted_as_they_are() -> None:
    """Tokens were raised and the budget was not. Laws that are refused for want of runs say so first."""
    longer = [{**each, "tokens": 3 * each["tokens"]} for each in sweep_spec()["proxies"]]
    world = edited(all_done(), proxies=longer, budget={"flops": flops_of(1)})
    plan = decide_sweep(world)
    assert not plan.create
    assert condition(plan, "Progressing")[1] == "BudgetExhausted"
    assert condition(plan, "Ready")[1] == "Fitting"
    assert plan.fit is not None
    assert len(plan.fit.points) == 8
    assert not any(point.finished for point in plan.fit.points)
    fit = FitOutcome(plan.fit.inputs, refused(), laws_sha256="f" * 64, points=8)
    told = decide_sweep(replace(known(world), fit=fit))
    spent = condition(told, "Progressing")[2]
    assert condition(told, "Ready")[1:] == (
        "OptimumOnLearningRateEdge",
        f"{spent} Extend the learning rates.",
    )


def test_a_run_at_its_end_is_not_stopped_by_a_budget_of_just_its_cost() -> None:
    """It is about to write its result."""
    ends = {p.key: progress(p, p.tokens) for p in POINTS[:3]}
    world = edited(training(progress=ends), budget={"flops": f"{cost(3):.15e}"})
    assert decide_sweep(world).delete == ()


def test_running_time_beyond_the_accelerator_hours_stops_what_runs() -> None:
    """Before the first result, too."""
    since = NOW - timedelta(minutes=31)
    jobs = tuple(job(p, working_since=since) for p in POINTS[:2])
    plan = decide_sweep(edited(training(jobs=jobs), budget={"acceleratorHours": 1}))
    assert len(plan.delete) == 2
    assert (
        "budget.acceleratorHours 1 is spent: its points used 1.03" in condition(plan, "Ready")[2]
    )


def test_before_the_first_result_hours_are_estimated_as_isoloss_plan_does() -> None:
    """A budget of a fraction of the first point's time starts nothing."""
    hours = cost(1) * assumed_seconds_per_flop(POINTS) / 3600
    assert hours < 1  # toy points: the smallest budget that the API allows is larger
    big = [
        {"name": "big", "model": {"config": example_model("dense-500m")}, "tokens": 10_000_000_000}
    ]
    world = observed(sweep_spec(proxies=big, budget={"acceleratorHours": 2}))
    plan = decide_sweep(world)
    assert plan.create == ()
    _, reason, message = condition(plan, "Progressing")
    assert reason == "BudgetExhausted"
    assert "budget.acceleratorHours 2 leaves no room for big-b8-lr1e-3" in message


def test_a_mixture_is_assumed_to_take_its_own_share_of_the_peak() -> None:
    """As `isoloss plan` does: 0.3 instead of a large dense model's 0.45."""
    paces = {}
    for name in ("dense-500m", "moe-500m"):
        proxies = [{"name": "big", "model": {"config": example_model(name)}, "tokens": 10**10}]
        paces[name] = assumed_seconds_per_flop(points(sweep_spec(proxies=proxies)))
    assert paces["moe-500m"] / paces["dense-500m"] == pytest.approx(0.45 / 0.3)
    assert assumed_seconds_per_flop([]) == 0.0


def test_what_runs_measures_the_pace_before_the_first_result() -> None:
    """A point took 30 minutes for half of its tokens: another does not fit into 1 h."""
    working = job(FIRST, working_since=NOW - timedelta(minutes=30))
    half = {FIRST.key: progress(FIRST, FIRST.tokens // 2)}
    world = edited(training(jobs=(working,), progress=half), budget={"acceleratorHours": 1})
    assert decide_sweep(world).create == ()


LARGE = [
    {"name": "tiny", "model": {"config": example_model("dense-tiny")}, "tokens": 1_000_000},
    {"name": "large", "model": {"config": example_model("dense-500m")}, "tokens": 10_000_000_000},
]


def with_tiny_done(hours: int, seconds: float) -> ObservedSweep:
    """Large points are left; each tiny one took so long, and so many hours are left."""
    budget = {"acceleratorHours": hours + round(4 * seconds / 3600)}
    spec = sweep_spec(proxies=LARGE, budget=budget)
    tiny = {
        p.key: result(p, accelerator_seconds=seconds)
        for p in points(spec)
        if p.proxy.name == "tiny"
    }
    begun = known(observed(spec), jobs=tuple(complete(p) for p in points(spec)[:4]), results=tiny)
    return known(begun, results={}, jobs=())


def test_a_larger_size_is_not_held_against_the_pace_of_small_models() -> None:
    """These wait for the overhead of each step: by their pace nothing large would ever start."""
    large = points(sweep_spec(proxies=LARGE))[-1]
    assumed = assumed_seconds_per_flop([large]) * large.flops / 3600
    measured = 3600.0 * large.flops / POINTS[0].flops
    assert measured > 1000 * assumed
    assert len(started(decide_sweep(with_tiny_done(round(2.5 * assumed), 3600.0)))) == 2
    assert started(decide_sweep(with_tiny_done(round(0.9 * assumed), 3600.0))) == ()


def test_once_a_point_of_a_size_is_done_its_own_pace_counts() -> None:
    world = with_tiny_done(1000, 3600.0)
    large = points(sweep_spec(proxies=LARGE))[4:]
    done = {large[0].key: result(large[0], accelerator_seconds=400 * 3600.0)}
    later = known(replace(world, jobs=(complete(large[0]),), results=done), jobs=(), results={})
    assert len(started(decide_sweep(later))) == 1, "600 h are left, and each takes 400"


def test_a_budget_without_room_for_any_point_is_named_with_what_to_do() -> None:
    """It used to say that no point produced a result, and nothing else."""
    world = edited(observed(), budget={"flops": "1e6"})
    reason, message = condition(decide_sweep(world), "Ready")[1:3]
    assert reason == "NoResults"
    assert f"budget.flops 1e6 leaves no room for {FIRST.name}. Raise the budget." in message


LONGER = [
    {"name": "tiny", "model": {"config": example_model("dense-tiny")}, "tokens": 1_200_000},
    {"name": "small", "model": {"config": example_model("dense-small")}, "tokens": 2_400_000},
]


def told(world: ObservedSweep) -> float:
    """FLOPs that its status says were spent."""
    return float(decide_sweep(world).status.spent_flops or 0)


def test_continuing_what_others_trained_costs_only_what_is_trained_here() -> None:
    """While it runs, once it was stopped, and once its result is there: by a budget of just that."""
    adopted = known(observed(results={p.key: result(p) for p in POINTS}), results={})
    assert told(adopted) == 0
    longer = points(sweep_spec(proxies=LONGER))
    pairs = list(zip(longer, POINTS, strict=True))
    own = sum(new.flops - old.flops for new, old in pairs)
    budget = {"flops": f"{own * 1.001:.9e}"}
    begun = edited(adopted, proxies=LONGER, parallelism=8, budget=budget)
    plan = decide_sweep(begun)
    assert len(plan.create) == len(longer)
    half = {new.key: progress(new, (new.tokens + old.tokens) // 2) for new, old in pairs}
    running = after(begun, plan, jobs=tuple(map(job, longer)), progress=half)
    assert decide_sweep(running).delete == ()
    assert told(running) == pytest.approx(own / 2, rel=0.01)
    stopped = known(replace(running, jobs=tuple(map(failed, longer))), jobs=())
    assert told(stopped) == pytest.approx(own / 2, rel=0.01)
    ended = {p.key: result(p, accelerator_seconds=3.0) for p in longer}
    over = known(replace(running, results=ended, jobs=tuple(map(complete, longer))), jobs=())
    assert told(over) == pytest.approx(own, rel=0.01)
    assert condition(decide_sweep(over), "Progressing")[1] == "Finished"


def test_more_tokens_within_the_last_step_are_there_already() -> None:
    """No attempt could add any: the trainer ends with the result as it is."""
    done = known(observed(results={p.key: result(p) for p in POINTS}))
    more = [{**proxy, "tokens": proxy["tokens"] + 100} for proxy in sweep_spec()["proxies"]]
    assert {p.tokens for p in points(sweep_spec(proxies=more))} == {p.tokens for p in POINTS}
    plan = decide_sweep(raised := edited(done, proxies=more))
    assert plan.create == ()
    assert condition(decide_sweep(after(raised, plan)), "Progressing")[1] == "Finished"
    assert all(record.is_finished for record in ledger_of(plan).points)


def test_what_was_trained_here_stays_spent_when_another_sweep_finishes_it() -> None:
    """FLOPs and hours; what the other trained costs nothing."""
    crashed = failed(FIRST, worked_seconds=1800.0)
    half = {FIRST.key: progress(FIRST, FIRST.tokens // 2)}
    world = known(training(progress=half, jobs=(crashed,)), jobs=(), progress={})
    found = {FIRST.key: result(FIRST, accelerator_seconds=99_999.0)}
    again = failed(FIRST, ExitCode.CLAIMED_ELSEWHERE, attempt=2)
    status = decide_sweep(replace(world, jobs=(again,), results=found)).status
    assert (status.points.adopted, status.accelerator_hours) == (1, "0.5")
    assert float(status.spent_flops) == told(world) > 0


def test_an_attempt_costs_what_it_trains_from_where_it_began() -> None:
    """A checkpoint that is gone, or that others left, is told by the attempt's own reports."""
    third = FIRST.tokens // 3
    crashed = known(
        training(jobs=(failed(FIRST),), progress={FIRST.key: progress(FIRST, 2 * third)}), jobs=()
    )
    for began in (0, third, 2 * third):
        report = progress(FIRST, FIRST.tokens).model_copy(
            update={"began_tokens": began, "claimant": Claimant(sweep_uid=UID, attempt=2)}
        )
        world = replace(crashed, jobs=(job(FIRST, attempt=2),), progress={FIRST.key: report})
        expected = six_nd(FIRST.proxy.parameters, 2 * third + FIRST.tokens - began)
        assert told(world) == pytest.approx(expected, rel=1e-5)
        ended = replace(world, jobs=(failed(FIRST, attempt=2),))
        assert spent_in(decide_sweep(ended)) == pytest.approx(expected)
        assert told(known(ended, jobs=(), progress={})) == pytest.approx(expected, rel=1e-5)


def test_what_a_stopped_job_trains_until_its_pod_has_ended_is_spent() -> None:
    """By its result, or by what it reported last: its end was recorded when it was stopped."""
    running = training(jobs=(job(FIRST),), progress={FIRST.key: progress(FIRST, 0)})
    suspended = edited(running, suspend=True)
    plan = decide_sweep(suspended)
    assert [each.name for each in plan.delete] == [job(FIRST).name]
    stopped = after(suspended, plan, jobs=(job(FIRST, deleting=True),), stopped=(job(FIRST),))
    stopped = known(stopped)
    assert told(stopped) == 0
    half = {FIRST.key: progress(FIRST, FIRST.tokens // 2)}
    later = known(replace(stopped, progress=half))
    assert told(later) == pytest.approx(six_nd(FIRST.proxy.parameters, FIRST.tokens // 2))
    own = result(FIRST, claimant=Claimant(sweep_uid=UID, attempt=1))
    ended = known(replace(later, jobs=(), results={FIRST.key: own}), results={})
    whole = six_nd(FIRST.proxy.parameters, FIRST.tokens)
    assert told(ended) == told(known(ended)) == pytest.approx(whole, rel=1e-5)
    dropped = known(without_first_rate(later))
    assert told(dropped) == told(later)


@pytest.mark.parametrize("how", ["it ends", "it is gone", "an invalid edit comes between"])
def test_what_a_stopped_job_trains_after_its_point_is_dropped_is_spent(how: str) -> None:
    """Its result was never asked for: a later budget was exceeded by that much."""
    own = {FIRST.key: result(FIRST, claimant=Claimant(sweep_uid=UID, attempt=1))}
    some = {FIRST.key: progress(FIRST, FIRST.tokens // 3)}
    working = training(jobs=(job(FIRST),), progress=some)
    stopped = known(edited(working, budget={"flops": "1e6"}))
    assert ledger_of(stopped).points[0].attempts.ended == 1
    dropped = without_first_rate(replace(stopped, jobs=(job(FIRST, deleting=True),)))
    if how != "an invalid edit comes between":
        dropped = known(dropped)
    gone = how == "it is gone"
    ended = replace(dropped, jobs=() if gone else (complete(FIRST, deleting=True),))
    assert FIRST.key in sweep_reads(ended, frozenset({FIRST.key})).results
    hidden = known(
        replace(ended, results={FIRST.key: Unanswered("SlowDown", alone=True)}), jobs=()
    )
    ending = known(replace(ended, jobs=(), orphaned_pods=(FIRST.key,)), orphaned_pods=())
    for world in (ended, hidden, ending):
        assert FIRST.key in sweep_reads(world, frozenset({FIRST.key})).results
        paid = known(replace(world, results=own), jobs=())
        for later in (paid, known(replace(paid, results=own))):
            spent = ledger_of(later).spent.flops
            assert spent == six_nd(FIRST.proxy.parameters, FIRST.tokens)
    assert FIRST.key not in sweep_reads(known(paid), frozenset({FIRST.key})).results
    back = decide_sweep(edited(paid, budget={"flops": "1e20"}))
    assert next(iter(ledger_of(back).points)).intent.action is IntentAction.RUN


def test_what_a_job_trained_is_spent_where_another_sweeps_result_came_meanwhile() -> None:
    """It was taken to have begun where that result ended, and its work for none."""
    half = {FIRST.key: progress(FIRST, FIRST.tokens // 2)}
    other = {FIRST.key: result(FIRST, claimant=Claimant(sweep_uid="another", attempt=1))}
    working = training(jobs=(job(FIRST),), progress=half)
    expected = six_nd(FIRST.proxy.parameters, FIRST.tokens // 2)
    assert told(working) == pytest.approx(expected)
    stopped = known(edited(replace(working, results=other), suspend=True))
    assert ledger_of(stopped).points[0].adopted
    assert told(stopped) == pytest.approx(expected, rel=1e-5)


def stopped_and_dropped(**changes: Any) -> ObservedSweep:
    """The Job of a point that is planned no more has gone on after it was stopped for the budget."""
    some = {FIRST.key: progress(FIRST, FIRST.tokens // 3)}
    stopped = known(edited(training(jobs=(job(FIRST),), progress=some), budget={"flops": "1e6"}))
    assert ledger_of(stopped).points[0].attempts.ended == 1
    return without_first_rate(replace(stopped, **changes))


GOES_ON: dict[str, ObservedSweep] = {
    "it runs": training(jobs=(job(FIRST),), progress=HALF),
    "it ends": training(jobs=(complete(FIRST),), progress=HALF),
    "it ends with its result": training(jobs=(complete(FIRST),), progress=HALF, results=OWN),
    "other points are asked for": edited(
        training(jobs=(job(FIRST),), progress=HALF),
        grid={"batchSizes": [8, 16], "learningRates": ["1e-3", "2e-3", "4e-3"]},
    ),
    "its point is dropped": stopped_and_dropped(
        jobs=(complete(FIRST, deleting=True),), results=OWN
    ),
    "its point is dropped, and it is gone": stopped_and_dropped(jobs=(), results=OWN),
}


@pytest.mark.parametrize("how", GOES_ON)
def test_what_a_job_cost_is_counted_on_while_the_corpus_is_prepared_again(how: str) -> None:
    """Its report was read no more, so that what was spent shrank until the corpus was there."""
    world = GOES_ON[how]
    before = decide_sweep(world).status
    gone = replace(world, manifest=ABSENT, status=before.document())
    stored = frozenset({FIRST.key} if "dropped" in how else ())
    reads = sweep_reads(replace(gone, results={}), stored)
    assert FIRST.key in (reads.results if world.results else reads.progress)
    plan = decide_sweep(gone)
    assert plan.status.spent_flops == before.spent_flops != "0"
    assert plan.status.accelerator_hours == before.accelerator_hours


def test_what_a_stopped_job_trains_later_counts_from_where_it_began() -> None:
    """Of one that had reported nothing by then, a checkpoint of others was paid as its own work."""
    suspended = edited(training(jobs=(job(FIRST),)), suspend=True)
    plan = decide_sweep(suspended)
    deleting = {"jobs": (job(FIRST, deleting=True),), "stopped": (job(FIRST),)}
    stopped = known(after(suspended, plan, **deleting))
    third = FIRST.tokens // 3
    for reached in (2 * third, FIRST.tokens):
        report = progress(FIRST, reached).model_copy(update={"began_tokens": third})
        stopped = known(replace(stopped, progress={FIRST.key: report}))
        expected = six_nd(FIRST.proxy.parameters, reached - third)
        assert told(stopped) == pytest.approx(expected, rel=1e-5)
