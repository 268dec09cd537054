"""What the metrics say of a sweep beyond its status."""

from dataclasses import replace
from datetime import timedelta

from isoloss_contract.ledger import Ledger, PointState
from isoloss_contract.records import ExitCode
from isoloss_operator.api import ScalingSweepStatus
from isoloss_operator.decide.observation import ObservedPod
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.process.sweep_load import (
    JOB_STATES,
    attempts_ended,
    job_state,
    sweep_load,
)
from tests.support.builders import (
    NOW,
    after,
    complete,
    failed,
    job,
    observed,
    points,
    result,
    sweep_spec,
)
from tests.support.ledgers import done, ledger, record

POINTS = points()
RUNS = {"working_since": NOW - timedelta(hours=1), "accelerators": 4}


def test_a_job_is_running_starting_queued_unschedulable_or_blocked() -> None:
    full = ObservedPod(phase="Pending", unschedulable="0/3 nodes are available")
    secret = ObservedPod(phase="Pending", waiting_reason="CreateContainerConfigError")
    states = {
        "running": job(POINTS[0], **RUNS),
        "starting": job(POINTS[0], working_since=None, pod=ObservedPod(phase="Pending")),
        "queued": job(POINTS[0], working_since=None, suspended=True, pod=None),
        "unschedulable": job(POINTS[0], working_since=None, pod=full),
        "blocked": job(POINTS[0], working_since=None, pod=secret),
    }
    assert {state: job_state(each) for state, each in states.items()} == {s: s for s in states}


def test_a_job_whose_pod_a_quota_refuses_is_unschedulable() -> None:
    refused = job(POINTS[0], working_since=None, pod=None, held_up="exceeded quota: pods=4")
    assert job_state(refused) == "unschedulable"


def test_a_job_that_another_cluster_runs_is_running_as_far_as_can_be_seen() -> None:
    there = job(POINTS[0], working_since=None, pod=None, managed_externally=True, started=NOW)
    assert job_state(there) == "running"


def test_only_running_pods_hold_accelerators() -> None:
    waiting = job(POINTS[1], suspended=True, pod=None, working_since=None, accelerators=8)
    world = observed(jobs=(job(POINTS[0], **RUNS), waiting))
    load = sweep_load(world, decide_sweep(world).status)
    assert load.accelerators == 4
    none = dict.fromkeys(JOB_STATES, 0)
    assert load.jobs == {**none, "running": 1, "queued": 1}


def test_the_point_that_has_been_silent_longest_is_told() -> None:
    jobs = (job(POINTS[0], **RUNS), job(POINTS[1], **RUNS))
    since = {jobs[0].uid: NOW - timedelta(minutes=40), jobs[1].uid: NOW}
    world = observed(jobs=jobs, unchanged_since=since)
    assert sweep_load(world, decide_sweep(world).status).oldest_progress == since[jobs[0].uid]
    assert sweep_load(observed(), decide_sweep(observed()).status).oldest_progress is None


def test_the_budget_is_told_as_spent_over_allowed() -> None:
    spec = sweep_spec(budget={"acceleratorHours": 2})
    ended = tuple(complete(p) for p in POINTS[:2])
    results = {p.key: result(p, accelerator_seconds=1800.0) for p in POINTS[:2]}
    world = observed(spec, jobs=ended, results=results)
    assert sweep_load(world, decide_sweep(world).status).budget_used == {"acceleratorHours": 0.5}
    assert sweep_load(observed(), decide_sweep(observed()).status).budget_used == {}


def test_every_attempt_is_counted_once_by_its_class() -> None:
    """Through the passes of a sweep: two crashes, one result, and nothing in the pass after that."""
    started = observed()
    plan = decide_sweep(started)
    jobs = (failed(POINTS[0], 1), failed(POINTS[1], 1), complete(POINTS[2]))
    world = after(started, plan, jobs=jobs, results={POINTS[2].key: result(POINTS[2])})
    ended = decide_sweep(world)
    assert ended.ledger is not None
    assert isinstance(world.ledger, Ledger)
    assert attempts_ended(world.ledger, ended.ledger) == {"Crashed": 2, "Succeeded": 1}
    again = decide_sweep(after(world, ended))
    assert again.ledger is None or not attempts_ended(ended.ledger, again.ledger)


def test_adopted_results_are_no_attempts_of_this_sweep() -> None:
    plan = decide_sweep(observed(results={p.key: result(p) for p in POINTS[:3]}))
    assert plan.ledger is not None
    assert not attempts_ended(None, plan.ledger)


def test_a_failure_for_good_is_counted_by_its_class() -> None:
    world = observed(jobs=(failed(POINTS[0], ExitCode.OUT_OF_MEMORY),))
    plan = decide_sweep(world)
    assert plan.ledger is not None
    assert attempts_ended(None, plan.ledger) == {"OutOfMemory": 1}


def test_the_lowest_losses_are_those_of_points_that_succeeded() -> None:
    """A diverged point's loss says nothing, and averaged weights count where there are any."""
    stored = ledger(
        done(1, 4.2),
        replace(done(2, 4.3), averaged_loss=4.1),
        replace(done(3, 0.1), state=PointState.DIVERGED),
        record(4, "small"),
    )
    world = observed(ledger=stored)
    assert sweep_load(world, ScalingSweepStatus()).lowest_losses == {"tiny": 4.1}
