"""A sweep that judges an answer, through the whole operator: three manifests applied at once, in any order."""

import time

import pytest
from kubernetes import client

from devcluster.process_node import ProcessNode
from isoloss_contract.ledger import PointState
from tests.isoloss_operator.conftest import Place, get, judging_sweep, sweep, write_toy_checkpoint
from tests.support.cluster import wait_until
from tests.support.operator_process import (
    OperatorProcess,
    User,
    conditions,
    prediction_manifest,
    sweep_manifest,
)

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

POINTS, AROUND = 18, 5
TOKENS = 4_000_000
MOST_SECONDS = 45
"""From an answer to its verdict: far less than the 60 s after which a prediction looks again by itself."""


def apply_all(user: User, place: Place, uri: str) -> None:
    """What depends on another resource first."""
    user.apply_sweep(judging_sweep(place, "judging", "target", uri, TOKENS))
    user.apply_prediction(
        prediction_manifest(
            "target",
            "dense",
            checkpoint={"uri": uri},
            validation={"sweepRef": {"name": "judging"}},
            publish={"configMapName": "answer"},
        )
    )
    grid = sweep_manifest("x", place.uri)["spec"]["grid"]
    user.apply_sweep(sweep(place, grid=grid, parallelism=12))


def test_three_manifests_applied_at_once_end_with_a_verdict_soon_after_the_answer(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """The answer, Ready and the ConfigMap stay as they were; then there is silence, also after a restart."""
    operator.start()
    apply_all(user, place, write_toy_checkpoint(place))
    user.wait_for(lambda: user.sweep("judging"), "Ready", "False", "PredictionNotReady")
    answered = user.wait_for(lambda: user.prediction("target"), "Ready")
    since = time.monotonic()
    published = client.CoreV1Api(user.api_client).read_namespaced_config_map
    before = published("answer", user.namespace).data
    body = user.wait_for(lambda: user.prediction("target"), "Validated")
    assert time.monotonic() - since < MOST_SECONDS

    judge = user.wait_for(lambda: user.sweep("judging"), "Ready", "True", "NothingToFit")
    assert conditions(judge)["Progressing"]["reason"] == "Finished"
    ledger = place.ledger(judge)
    assert [record.state for record in ledger.points] == [PointState.SUCCEEDED] * AROUND
    assert set(place.traces.starts().values()) == {1}
    assert len(place.traces.starts()) == POINTS + AROUND

    status, message = body["status"], conditions(body)
    assert message["Validated"]["reason"] == "AnswerHolds", message["Validated"]
    assert message["Ready"]["reason"] == "Predicted"
    assert message["Stale"]["status"] == "False"
    assert status["learningRate"] == answered["status"]["learningRate"]
    assert published("answer", user.namespace).data == before
    places = status["validation"]["places"]
    assert [each["state"] for each in places] == ["Succeeded"] * AROUND
    own, refined = status["learningRate"], status["refined"]["learningRate"]
    assert float(refined["high"]) / float(refined["low"]) < float(own["high"]) / float(own["low"])

    # Their pages are drawn.
    user.wait_for(lambda: user.sweep("dense"), "Reconciling", "False")
    user.wait_for(lambda: user.sweep("judging"), "Reconciling", "False")
    status = user.wait_for(lambda: user.prediction("target"), "Reconciling", "False")["status"]
    judged = user.sweep("judging")["status"]
    assert operator.stop() == 0
    assert not [line for line in operator.lines() if line["level"] == "ERROR"]
    operator.start()
    operator.url()
    wait_until(lambda: get(operator, "/readyz")[0] == 200, "the second start")
    time.sleep(3)
    assert user.prediction("target")["status"] == status
    assert user.sweep("judging")["status"] == judged
    assert len(place.traces.read("start")) == POINTS + AROUND
