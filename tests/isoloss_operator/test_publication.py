"""Where a prediction's answer is published, as its spec asks now and not as it once did."""

from typing import Any

import pytest
from kubernetes import client

from devcluster.process_node import ProcessNode
from tests.isoloss_operator.conftest import Place
from tests.support.cluster import wait_until
from tests.support.operator_process import (
    OperatorProcess,
    User,
    prediction_manifest,
    sweep_manifest,
)

pytestmark = [pytest.mark.cluster, pytest.mark.s3]


def test_an_answer_published_under_another_name_leaves_the_former_one(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """A ConfigMap that only claims to be the prediction's is never touched."""
    core = client.CoreV1Api(user.api_client)
    operator.start()
    target = prediction_manifest("target", "dense", publish={"configMapName": "one"})
    uid = user.apply_prediction(target)["metadata"]["uid"]
    foreign: Any = {"metadata": {"name": "foreign", "labels": {"isoloss.dev/owner-uid": uid}}}
    core.create_namespaced_config_map(user.namespace, foreign)

    def names() -> set[str]:
        listed: Any = core.list_namespaced_config_map(user.namespace).items
        return {each.metadata.name for each in listed} - {"kube-root-ca.crt"}

    wait_until(lambda: names() == {"one", "foreign"}, "the first publication")
    target["spec"]["publish"] = {"configMapName": "two"}
    user.apply_prediction(target)
    wait_until(lambda: names() == {"two", "foreign"}, "the second, and the first to go")
    del target["spec"]["publish"]
    user.apply_prediction(target)
    wait_until(lambda: names() == {"foreign"}, "the second to go")


def test_status_and_config_map_follow_every_edit_of_an_answered_prediction(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """Another checkpoint, a given loss in its place, and an edit after its sweep was deleted."""
    core = client.CoreV1Api(user.api_client)
    operator.start()
    user.apply_sweep(sweep_manifest("dense", place.uri))
    publish, small = {"configMapName": "answer"}, {"flops": "2e12"}  # so that C_pre matters
    target = prediction_manifest("target", "dense", publish=publish, budget=small)

    def answer() -> tuple[str, str]:
        """(initial loss, learning rate) of the present spec, which the ConfigMap has, too."""
        user.apply_prediction(target)
        status = user.wait_for(lambda: user.prediction("target"), "Ready")["status"]
        rate = status["learningRate"]["value"]

        def is_published() -> bool:
            found: Any = core.read_namespaced_config_map("answer", user.namespace)
            return bool((found.data or {}).get("learningRate") == rate)

        wait_until(is_published, "the ConfigMap to have the status's learning rate")
        return status["initialLoss"]["value"], rate

    first = answer()
    target["spec"]["checkpoint"] = {"uri": "s3://models/loss-3.1"}
    second = answer()
    assert (first[0], second[0]) == ("2.6000", "3.1000")
    assert first[1] != second[1]

    del target["spec"]["checkpoint"]
    target["spec"]["initialLoss"] = "2.6"
    given = answer()
    assert given[0] == "2.6"
    assert "domainLosses" not in user.prediction("target")["status"]

    target["spec"]["checkpoint"] = {"uri": "s3://models/loss-3.1"}
    del target["spec"]["initialLoss"]
    assert answer() == second
    user.delete_sweep("dense")
    user.wait_for(lambda: user.prediction("target"), "Stale", "True", "SweepNotFound")
    target["spec"]["budget"] = {"flops": "4e12"}
    user.apply_prediction(target)
    withdrawn = user.wait_for(lambda: user.prediction("target"), "Ready", "False", "SweepNotFound")
    assert "learningRate" not in withdrawn["status"]
    assert "domainLosses" not in withdrawn["status"]
