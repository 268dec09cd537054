"""Probes of an answer, through the whole operator: trained once each, judged, the answer left as it is."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from kubernetes import client

from devcluster.process_node import ProcessNode
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, PointState
from isoloss_contract.ledger_files import read_ledger
from isoloss_contract.store import Store
from tests.isoloss_operator.conftest import Place, get, sweep
from tests.support.cluster import wait_until
from tests.support.operator_process import (
    OperatorProcess,
    User,
    conditions,
    prediction_manifest,
    sweep_manifest,
)
from tests.support.published_configs import TOY_CHECKPOINT

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

POINTS, PROBES = 18, 5


def checkpoint(place: Place) -> str:
    """The toy checkpoint in the test's bucket, with an initial loss of 2.6."""
    folder = place.folder / "models" / "loss-2.6"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TOY_CHECKPOINT))
    (folder / "model.safetensors").write_text("weights")
    return f"{place.uri}/models/loss-2.6"


def apply_both(
    user: User,
    place: Place,
    uri: str,
    seconds: float,
    **validation: Any,
) -> None:
    grid = sweep_manifest("x", place.uri)["spec"]["grid"]
    user.apply_sweep(sweep(place, grid=grid, seconds=seconds))
    asked = {"tokensShare": "0.5", "parallelism": 2, **validation}
    user.apply_prediction(
        prediction_manifest(
            "target",
            "dense",
            checkpoint={"uri": uri},
            validation=asked,
            publish={"configMapName": "answer"},
        )
    )


def judged(user: User) -> dict[str, Any]:
    """The prediction once its probes are judged."""
    wait_until(
        lambda: (
            conditions(user.prediction("target")).get("Validated", {}).get("status")
            in ("True", "False")
        ),
        "the verdict",
        180,
    )
    return user.prediction("target")


def ledger_of_probes(place: Place, prediction: dict[str, Any]) -> Ledger:
    metadata = prediction["metadata"]
    folder = layout.prediction_folder(metadata["name"], metadata["uid"])
    return read_ledger(Store(f"file://{place.folder}"), folder)


def test_probes_of_an_answer_are_trained_once_each_and_judge_it_however_often_the_operator_dies(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """The answer, Ready and the ConfigMap stay; then there is silence, also after a restart."""
    operator.start()
    apply_both(user, place, checkpoint(place), seconds=0.6)
    answered = user.wait_for(lambda: user.prediction("target"), "Ready")
    assert conditions(answered)["Validated"]["status"] == "Unknown"
    published = client.CoreV1Api(user.api_client).read_namespaced_config_map
    before = published("answer", user.namespace).data
    chance = random.Random(3)
    for _ in range(3):
        operator.kill()
        operator.start()
        operator.url()
        time.sleep(chance.uniform(0.0, 1.5))
    judged(user)
    # The report is drawn.
    user.wait_for(lambda: user.sweep("dense"), "Reconciling", "False")
    body = user.prediction("target")
    assert conditions(body)["Stale"]["status"] == "False"

    status, said = body["status"], conditions(body)
    assert said["Validated"]["reason"] == "AnswerHolds", said["Validated"]
    assert said["Ready"]["reason"] == "Predicted"
    assert said["Reconciling"]["status"] == "False"
    assert published("answer", user.namespace).data == before
    assert status["learningRate"] == answered["status"]["learningRate"]
    assert set(place.traces.starts().values()) == {1}
    assert len(place.traces.starts()) == POINTS + PROBES
    ledger = ledger_of_probes(place, body)
    assert {record.state for record in ledger.points} == {PointState.SUCCEEDED}
    assert len(ledger.points) == PROBES
    validation = status["validation"]
    assert validation["progress"] == f"{PROBES}/{PROBES}"
    assert validation["ledger"]["sha256"] == ledger.digest
    assert float(validation["spentFlops"]) == pytest.approx(float(validation["plannedFlops"]))
    own, refined = status["learningRate"], status["refined"]["learningRate"]
    assert float(refined["high"]) / float(refined["low"]) < float(own["high"]) / float(own["low"])

    assert operator.stop() == 0
    assert not [line for line in operator.lines() if line["level"] == "ERROR"]
    operator.start()
    operator.url()
    wait_until(lambda: get(operator, "/readyz")[0] == 200, "the last start")
    time.sleep(3)
    assert user.prediction("target")["status"] == status
    assert len(place.traces.read("start")) == POINTS + PROBES


def test_a_pod_template_that_is_refused_to_probes_keeps_back_no_answer(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """The answer is published before probes are tried; a corrected template starts them."""
    operator.start()
    uri = checkpoint(place)
    refused = {"spec": {"hostNetwork": True}}
    apply_both(user, place, uri, seconds=0.02, podTemplate=refused)
    held = user.wait_for(lambda: user.prediction("target"), "Validated", "Unknown", "JobRefused")
    assert "hostNetwork" in conditions(held)["Validated"]["message"]
    assert conditions(held)["Ready"]["status"] == "True"
    assert conditions(held)["Stalled"]["status"] == "False"
    core = client.CoreV1Api(user.api_client)
    assert core.read_namespaced_config_map("answer", user.namespace).data["ready"] == "true"
    apply_both(user, place, uri, seconds=0.02)
    assert judged(user)["status"]["validation"]["points"]["succeeded"] == PROBES
    assert set(place.traces.starts().values()) == {1}
