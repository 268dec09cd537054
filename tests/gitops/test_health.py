"""Argo CD, Flux and kstatus take every state of the state tables for what it is."""

from functools import cache
from typing import Any

import pytest

from isoloss_operator.api import GROUP, PREDICTION_KIND, SWEEP_KIND, VERSION
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.sweep import decide_sweep
from tests.gitops.health import (
    argocd_health,
    argocd_scripts,
    flux_expressions,
    flux_health,
    kstatus,
)
from tests.isoloss_operator.decide import test_continued_sweep as around
from tests.isoloss_operator.decide import test_decide_prediction as prediction_table
from tests.isoloss_operator.decide import test_sweep_states as sweep_table

Json = dict[str, Any]
SUSPENDED = {
    "a suspended sweep stops its Jobs, uncharged",
    "a suspended sweep without Jobs waits",
}
BEING_REPLACED = {
    "an answer is kept, stale, while its sweep trains again",
    "an answer is kept, stale, until the operator has seen the changed sweep",
    "an answer is kept, stale, when its checkpoint is replaced and the corpus is gone",
}
"""Ready, but a pipeline that waits for the new answer must not go on with the old one."""
REPORT_PENDING = {"laws are ready before their report is drawn"}
"""Ready: nothing that uses the laws needs the report. To kstatus, Reconciling comes first."""
APPLIED = {SWEEP_KIND: "research-sweep", PREDICTION_KIND: "research-prediction"}
"""The Kustomization that applies it."""


def seen(kind: str, world: Any, status: Any) -> Json:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": kind,
        "metadata": {"name": world.name, "generation": world.generation},
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


@cache
def sweep_state(name: str) -> tuple[Any, Json]:
    row = sweep_table.ROWS[name]
    world = row.world()
    return row, seen(SWEEP_KIND, world, decide_sweep(world).status)


@cache
def prediction_state(name: str) -> tuple[Any, Json]:
    row = prediction_table.ROWS[name]
    world = row.world()
    return row, seen(PREDICTION_KIND, world, decide_prediction(world).status)


STATES = [
    *(pytest.param(sweep_state, name, id=f"sweep: {name}") for name in sweep_table.ROWS),
    *(pytest.param(prediction_state, n, id=f"prediction: {n}") for n in prediction_table.ROWS),
]


@pytest.mark.parametrize(("state", "name"), STATES)
def test_every_tool_takes_a_state_for_what_it_is(state: Any, name: str) -> None:
    """To Argo CD it is Degraded where somebody must act, Healthy with an answer; the message says why.

    Flux applies the training job once sweep and prediction are Current. It is done with what is under way: a sweep that
    trains for days, or waits for a quota, is no reason for an alarm. To kstatus, without any configuration, it is what
    Stalled and Ready say.
    """
    row, body = state(name)
    is_ready = row.ready[0] == "True"
    is_answered = is_ready and name not in BEING_REPLACED
    waits = "Suspended" if name in SUSPENDED else "Progressing"
    argo, message = argocd_health(body)
    assert argo == ("Degraded" if row.stalled else "Healthy" if is_answered else waits)
    if name not in SUSPENDED | BEING_REPLACED:
        assert message.startswith(f"{row.ready[1]}: ")

    def verdict(is_current: bool) -> str:
        return "Failed" if row.stalled else "Current" if is_current else "InProgress"

    assert flux_health(body, "research-answer") == verdict(is_answered)
    assert flux_health(body, APPLIED[body["kind"]]) == verdict(True)
    assert kstatus(body) == verdict(is_ready and name not in REPORT_PENDING)


@pytest.mark.parametrize("kind", [SWEEP_KIND, PREDICTION_KIND])
@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"observedGeneration": -1}, id="no pass yet"),
        pytest.param(
            {
                "observedGeneration": 1,
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": "Fitted", "message": "."}
                ],
            },
            id="ready under the former spec",
        ),
    ],
)
def test_a_spec_that_the_operator_has_not_seen_is_in_progress(kind: str, status: Json) -> None:
    body = {"kind": kind, "metadata": {"name": "dense", "generation": 2}, "status": status}
    assert argocd_health(body)[0] == "Progressing"
    assert flux_health(body, APPLIED[kind]) == "InProgress"
    assert kstatus(body) == "InProgress"


def test_a_status_without_conditions_is_in_progress_for_argocd() -> None:
    body = {
        "kind": SWEEP_KIND,
        "metadata": {"generation": 1},
        "status": {"observedGeneration": 1},
    }
    assert argocd_health(body)[0] == "Progressing"


def test_both_kinds_have_a_health_check_in_either_tool() -> None:
    kinds = {SWEEP_KIND, PREDICTION_KIND}
    assert set(argocd_scripts()) == kinds
    checks = [each for of_one in flux_expressions().values() for each in of_one]
    assert {each["kind"] for each in checks} == kinds
    assert {each["apiVersion"] for each in checks} == {f"{GROUP}/{VERSION}"}


WAITING = {
    "before its prediction is applied": (around.world(), "Progressing", "InProgress"),
    "before its prediction has an answer": (
        around.world(found=around.answer(status="False", reason="SweepNotReady")),
        "Progressing",
        "InProgress",
    ),
    "once its points are done": (
        around.finished(around.world(found=around.answer())),
        "Healthy",
        "Current",
    ),
}
"""A sweep around the answer of a prediction: the argument, and what Argo CD and kstatus say of it."""


@pytest.mark.parametrize(("world", "argo", "flux"), WAITING.values(), ids=WAITING)
def test_a_sweep_around_an_answer_waits_for_it_and_is_never_stalled(
    world: Any, argo: str, flux: str
) -> None:
    """All manifests may be in one commit: Flux takes what waits for applied, and nothing is Degraded."""
    body = seen(SWEEP_KIND, world, decide_sweep(world).status)
    assert argocd_health(body)[0] == argo
    assert kstatus(body) == flux
    assert flux_health(body, "research-sweep") == "Current"
