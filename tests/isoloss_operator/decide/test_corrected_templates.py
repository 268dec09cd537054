"""What a user or the chart corrects reaches the Jobs that wait for it, and leaves those at work alone."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from isoloss_contract.reading import ABSENT
from isoloss_contract.records import ExitCode
from isoloss_operator.decide.observation import (
    LABEL_TEMPLATE,
    ObservedPod,
    ObservedSweep,
    ObservedWorkload,
)
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.points import PlannedPoint
from tests.support import predictions
from tests.support.builders import (
    NOW,
    STORE,
    condition,
    failed,
    job,
    ledger_of,
    observed,
    parsed,
    result,
    sweep_spec,
    words,
)
from tests.support.ledgers import read_back
from tests.support.sweep_worlds import FIRST, POINTS, PREPARE_KEY, known, waiting, with_fit
from tests.support.synthetic_runs import fitted_laws

UNPULLED = {"pod": waiting("ImagePullBackOff", "no such image")}
QUEUED = {"suspended": True, "pod": None, "unfinished_pods": 0, "workload": ObservedWorkload("w")}


def template(image: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "image": image}]}}


def three(spec: Mapping[str, Any], **changes: Any) -> ObservedSweep:
    """The first three points' Jobs as this spec asks for them."""
    world = observed(spec)
    labels = [request.labels for request in decide_sweep(world).create]
    jobs = zip(POINTS[:3], labels, strict=True)
    return known(
        world, jobs=tuple(job(p, template=each[LABEL_TEMPLATE], **changes) for p, each in jobs)
    )


def edited(world: ObservedSweep, spec: Mapping[str, Any]) -> ObservedSweep:
    return replace(world, generation=2, spec=parsed(spec))


MISTYPED = sweep_spec(podTemplate=template("registry/trainr:1"))
CORRECTED = sweep_spec(podTemplate=template("registry/trainer:1"))
QUEUE = sweep_spec(queue={"localQueueName": "reserch"})


@pytest.mark.parametrize(
    ("before", "waits", "after"),
    [
        (MISTYPED, UNPULLED, CORRECTED),
        (QUEUE, QUEUED, sweep_spec(queue={"localQueueName": "research"})),
        (QUEUE, QUEUED, sweep_spec()),
        (
            sweep_spec(),
            {"pod": None, "held_up": "pods are forbidden: no such service account"},
            sweep_spec(podTemplate={"spec": {"serviceAccountName": "trainer"}}),
        ),
        (
            sweep_spec(),
            {"pod": ObservedPod(unschedulable="no node")},
            sweep_spec(storage={"uri": STORE, "secretName": "other"}),
        ),
    ],
)
def test_jobs_that_wait_for_what_is_corrected_are_replaced_uncharged(
    before: Mapping[str, Any], waits: dict[str, Any], after: Mapping[str, Any]
) -> None:
    world = three(before, **waits)
    plan = decide_sweep(edited(world, after))
    assert len(plan.delete) == 3
    world = known(edited(world, after), jobs=())
    plan = decide_sweep(world)
    assert [request.attempt for request in plan.create] == [2, 2, 2]
    assert plan.ledger is None
    records = decide_sweep(edited(three(before, **waits), after)).ledger
    assert records is not None
    assert not any(record.attempts.charged for record in records.points)


def test_jobs_are_replaced_when_the_charts_template_is_corrected_and_not_on_a_restart() -> None:
    world = known(replace(observed(), operator_template="of-the-chart"))
    labels = decide_sweep(world).create[0].labels
    waits = job(POINTS[0], template=labels[LABEL_TEMPLATE], **UNPULLED)
    world = replace(world, jobs=(waits,))
    assert not decide_sweep(world).delete
    assert len(decide_sweep(replace(world, operator_template="corrected")).delete) == 1


@pytest.mark.parametrize(
    "is_at_work",
    [
        {"pod": ObservedPod(phase="Running"), "working_since": NOW},
        {"pod": ObservedPod(phase="Pending"), "working_since": NOW},  # another of several pods
        {**QUEUED, "worked_seconds": 60.0},  # evicted
        {"pod": None},  # about to succeed
        {"pod": None, "managed_externally": True, "held_up": "no pod"},
        {"pod": ObservedPod(phase="Running")},
    ],
)
def test_a_job_whose_trainer_may_have_started_goes_on_under_its_own_template(
    is_at_work: dict[str, Any],
) -> None:
    world = three(MISTYPED, **is_at_work)
    assert not decide_sweep(edited(world, CORRECTED)).delete


def test_a_job_keeps_its_place_in_the_queue_if_nothing_else_is_asked_of_it() -> None:
    after = {**QUEUE, "parallelism": 4, "failurePolicy": {"stallSeconds": 60}}
    assert not decide_sweep(edited(three(QUEUE, **QUEUED), after)).delete


def test_a_job_without_the_label_is_taken_for_unchanged() -> None:
    world = three(MISTYPED, **UNPULLED)
    unlabelled = tuple(replace(each, template="") for each in world.jobs)
    assert not decide_sweep(edited(replace(world, jobs=unlabelled), CORRECTED)).delete


def test_a_preparation_that_waits_for_a_node_is_replaced_once_its_selector_is_corrected() -> None:
    world = observed(manifest=ABSENT)
    labels = decide_sweep(world).create[0].labels
    pod = ObservedPod(unschedulable="no node matches")
    waits = job(PREPARE_KEY, template=labels[LABEL_TEMPLATE], pod=pod)
    world = known(world, jobs=(waits,))
    assert not decide_sweep(world).delete
    data = {**sweep_spec()["data"], "podTemplate": {"spec": {"nodeSelector": {"pool": "cpu"}}}}
    world = edited(world, sweep_spec(data=data))
    assert len(decide_sweep(world).delete) == 1
    plan = decide_sweep(known(world, jobs=()))
    assert [request.attempt for request in plan.create] == [2]


@pytest.mark.parametrize("change", [{"podTemplate": template("right")}, {"secretName": "theirs"}])
def test_an_evaluation_that_waits_is_replaced_once_its_template_is_corrected(
    change: dict[str, Any],
) -> None:
    world = predictions.observed(evaluation=ABSENT)
    labels = decide_prediction(world).create[0].labels
    waits = predictions.job(template=labels[LABEL_TEMPLATE], **UNPULLED)
    world = replace(world, jobs=(waits,))
    assert not decide_prediction(world).delete
    checkpoint = {"uri": predictions.CHECKPOINT, **change}
    spec = predictions.parsed_prediction(predictions.prediction_spec(checkpoint=checkpoint))
    world = replace(world, generation=2, spec=spec)
    plan = decide_prediction(world)
    assert len(plan.delete) == 1
    ledger = read_back(ledger_of(plan))
    plan = decide_prediction(replace(world, jobs=(), ledger=ledger))
    assert [request.attempt for request in plan.create] == [2]


def failing_for_good(*worlds_of: PlannedPoint | str) -> ObservedSweep:
    """Each task has failed as often as it may, under a broken chart."""
    manifest = {"manifest": ABSENT} if PREPARE_KEY in worlds_of else {}
    world = known(observed(operator_template="broken", **manifest))
    for attempt in range(1, 5):
        jobs = tuple(failed(each, 1, attempt=attempt) for each in worlds_of)
        world = known(world, jobs=jobs, now=world.now + timedelta(hours=1))
    return known(world, jobs=())


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [((PREPARE_KEY,), "PreparationFailed"), (POINTS[:3], "TooManyFailedPoints")],
)
def test_a_corrected_chart_starts_the_count_of_failures_anew(
    tasks: tuple[PlannedPoint | str, ...], reason: str
) -> None:
    world = failing_for_good(*tasks)
    plan = decide_sweep(world)
    assert condition(plan, "Ready")[1] == reason
    assert not plan.create
    world = replace(world, operator_template="corrected")
    plan = decide_sweep(world)
    assert condition(plan, "Ready")[1] != reason
    assert [request.attempt for request in plan.create] == [5] * len(tasks)
    assert decide_sweep(known(world)).ledger is None, "once"


def test_a_sweep_that_has_its_laws_does_not_begin_again_with_an_upgrade() -> None:
    world = failing_for_good(FIRST)
    world = known(world, results={p.key: result(p) for p in POINTS[1:]})
    world = known(with_fit(known(world), fitted_laws()))
    assert condition(decide_sweep(world), "Ready")[0] == "True"
    upgraded = replace(world, operator_template="upgraded")
    for _ in range(2):
        plan = decide_sweep(upgraded)
        assert condition(plan, "Ready")[0] == "True"
        assert not plan.create
        upgraded = known(upgraded)


REFUSED = {
    "exit_code": int(ExitCode.BAD_CONFIGURATION),
    "pod_termination_message": words("UnknownField", "extra inputs are not permitted", "config"),
}


def test_a_refusal_ends_with_the_chart_that_caused_it() -> None:
    world = known(observed(operator_template="broken"))
    label = decide_sweep(world).create[0].labels[LABEL_TEMPLATE]
    refusing = failed(FIRST, generation=1, template=label, **REFUSED)
    refused = known(world, jobs=(refusing,))
    assert condition(decide_sweep(refused), "Ready")[1] == "BadConfiguration"
    corrected = replace(refused, jobs=(), operator_template="corrected")
    assert decide_sweep(corrected).create
    late = replace(world, jobs=(refusing,), operator_template="corrected")
    assert condition(decide_sweep(late), "Ready")[1] != "BadConfiguration"
