"""Suspension while nothing can be read: Jobs stop at once, and are recorded uncharged when the ledger is back."""

import functools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from isoloss_contract.ledger import PointState
from isoloss_operator.decide.attempts import accelerator_seconds
from isoloss_operator.decide.reads import sweep_reads
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.specs import InvalidSpec, parse_sweep_spec
from isoloss_operator.reconcile.memory import stop, unrecorded
from isoloss_operator.reconcile.resource import parsed as parsed_body
from tests.support.builders import (
    NOW,
    after,
    condition,
    job,
    ledger_of,
    names,
    parsed,
    progress,
    result,
    sweep_spec,
)
from tests.support.sweep_worlds import FIRST, POINTS, training

LATER = NOW + timedelta(hours=3)
SUSPENDED = parsed(sweep_spec(suspend=True))


def nested(levels: int) -> dict[str, Any]:
    return functools.reduce(lambda inner, _: {"data": inner}, range(levels), {})


def working() -> Any:
    """A Job whose pod has been at work for a minute."""
    return job(FIRST, working_since=NOW - timedelta(seconds=60))


@pytest.mark.parametrize(
    "trouble",
    [
        {"store_error": "s3://bucket: the connection was refused"},
        {"storage_refusal": "this namespace may use no storage"},
    ],
    ids=["store away", "storage revoked"],
)
def test_a_sweep_without_its_store_says_that_it_is_suspended(trouble: dict[str, str]) -> None:
    """Not that spec.suspend is false, and not before its pods have ended that no Job is running."""
    world = replace(training(), spec=SUSPENDED, generation=2, **trouble)
    for jobs, reason in ((world.jobs, "Suspending"), ((), "Suspended")):
        plan = decide_sweep(replace(world, jobs=jobs))
        assert condition(plan, "Suspended")[:2] == ("True", reason)


@pytest.mark.parametrize("invalid", [{"proxies": []}, {"data": nested(200)}])
def test_an_invalid_spec_is_suspended_as_it_says(invalid: dict[str, Any]) -> None:
    body = {"spec": sweep_spec(suspend=True, **invalid)}
    spec = parsed_body(parse_sweep_spec, body)
    assert isinstance(spec, InvalidSpec)
    assert spec.suspend
    assert condition(decide_sweep(replace(training(), spec=spec)), "Suspended")[0] == "True"


def test_stopping_deletes_what_runs_once_and_keeps_what_it_had_cost() -> None:
    one, two = working(), job(POINTS[1], deleting=True)
    evaluation = replace(job(POINTS[2]), kind="evaluate")
    delete, stopped = stop((one, two, evaluation), (), NOW)
    assert names(delete) == [one.name, evaluation.name]
    assert [each.name for each in stopped] == [one.name, two.name, evaluation.name]
    assert accelerator_seconds(stopped[0], LATER) == 60.0
    again, same = stop((replace(one, deleting=True), two), stopped, LATER)
    assert again == ()
    assert same == stopped


def test_what_was_stopped_without_the_store_is_recorded_uncharged_when_it_is_back() -> None:
    """Though its Job is long gone: the attempt, its interruption, its time and its last report."""
    began = replace(training(jobs=(working(),)), spec=SUSPENDED, generation=2)
    _, stopped = stop(began.jobs, (), NOW)
    away = replace(began, store_error="away", stopped=stopped, jobs=())
    assert decide_sweep(away).ledger is None
    back = replace(
        away,
        store_error="",
        now=LATER,
        progress={FIRST.key: progress(FIRST, 500_000)},
    )
    plan = decide_sweep(back)
    record = ledger_of(plan).points[0]
    assert record.attempts.ended == 1
    assert record.attempts.interruptions == 1
    assert record.attempts.charged == {}
    assert record.spent.accelerator_seconds == 60.0
    assert record.spent.flops > 0
    assert unrecorded(stopped, ledger_of(plan)) == ()
    assert unrecorded(stopped, None) == stopped

    resumed = decide_sweep(
        after(back, plan, spec=parsed(sweep_spec()), generation=3, stopped=stopped)
    )
    first = next(each for each in resumed.create if each.labels["isoloss.dev/key"] == FIRST.key)
    assert first.attempt == 2
    recorded = resumed.ledger or ledger_of(plan)
    assert recorded.points[0].attempts.interruptions == 1, "once"


def test_a_result_that_a_stopped_attempt_wrote_on_its_way_out_is_not_trained_again() -> None:
    """No ledger could be written until the sweep was resumed: its Job, as it is remembered, is still at work."""
    _, stopped = stop((working(),), (), NOW)
    resumed = replace(
        training(jobs=(job(FIRST, complete=True, deleting=True),)),
        stopped=stopped,
        generation=3,
        now=LATER,
    )
    reads = sweep_reads(resumed, frozenset({FIRST.key}))
    assert FIRST.key in reads.results
    plan = decide_sweep(replace(resumed, results={FIRST.key: result(FIRST)}))
    record = ledger_of(plan).points[0]
    assert record.state is PointState.SUCCEEDED
    assert record.attempts.ended == 1
    assert FIRST.key not in [each.labels["isoloss.dev/key"] for each in plan.create]


def test_the_end_of_an_attempt_that_kubernetes_does_not_know_survives_a_suspension() -> None:
    """Its Job was deleted while no ledger could be written, and the FLOPs that it had reported vanished."""
    lost = replace(
        working(), lost=True, failed=True, reason="NodeLost", ended=NOW, working_since=None
    )
    half = progress(FIRST, FIRST.tokens // 2)
    world = replace(training(jobs=(lost,)), progress={FIRST.key: half})
    spent = decide_sweep(world).status.spent_flops
    delete, stopped = stop(world.jobs, (), NOW)
    assert names(delete) == [lost.name]
    gone = replace(world, jobs=(), stopped=stopped, spec=SUSPENDED)
    plan = decide_sweep(gone)
    record = next(each for each in ledger_of(plan).points if each.key == FIRST.key)
    assert record.attempts.ended == lost.attempt
    assert plan.status.spent_flops == spent != "0"
