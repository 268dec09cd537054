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
