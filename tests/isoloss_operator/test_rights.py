"""The whole operator under the chart's rights: none is missing, and none is granted in vain.

What it did is read from the API server's own audit log, watches of kopf included.
"""

import json
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from devcluster.cluster import DevCluster
from devcluster.control_plane import ControlPlane
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import ProcessNode
from isoloss_operator.cluster.client import JOB, SWEEP, Cluster, Refused
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.rbac import NAME, RULES, Rule, lease_rules
from tests.isoloss_operator.conftest import Place, finished, sweep
from tests.support.cluster import wait_until
from tests.support.operator_process import (
    OperatorProcess,
    User,
    prediction_manifest,
    sweep_manifest,
)

pytestmark = [pytest.mark.cluster, pytest.mark.s3, pytest.mark.slow]

Right = tuple[str, str, str]
"""Group, resource with its subresource, verb."""
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}
UNSEEN = {
    ("isoloss.dev", "scalingsweeps/finalizers", "update"),
    ("isoloss.dev", "hyperparampredictions/finalizers", "update"),
    ("events.k8s.io", "events", "list"),
}
"""The first two are asked for by an admission plugin whenever a Job is created with an owner: no request of its own.
Events are read where a Job does not start, which test_held_up_pods.py shows with these rights."""


@pytest.fixture(scope="module")
def dev_cluster(dev_cluster: DevCluster) -> Iterator[DevCluster]:
    """A cluster of this module's own, which keeps an audit log and checks who blocks whose deletion."""
    own = DevCluster(dev_cluster.directory / "own" / f"rights-{secrets.token_hex(4)}")
    own.directory.mkdir(parents=True)
    policy = own.directory / "audit-policy.json"
    policy.write_text(json.dumps(POLICY))
    flags = {
        "audit-policy-file": policy,
        "audit-log-path": own.directory / "audit.log",
        "enable-admission-plugins": "PodNodeSelector,OwnerReferencesPermissionEnforcement",
    }
    own.control_plane = ControlPlane(own.control_plane.directory, api_server_flags=flags)
    own.control_plane.start()
    own.object_storage.start()
    yield own
    own.stop()
    shutil.rmtree(own.directory, ignore_errors=True)


@pytest.fixture(scope="module")
def control_plane(dev_cluster: DevCluster) -> ControlPlane:
    return dev_cluster.control_plane


@pytest.fixture(scope="module")
def object_storage(dev_cluster: DevCluster) -> ObjectStorage:
    return dev_cluster.object_storage


@pytest.fixture(scope="module")
def api_client(control_plane: ControlPlane) -> client.ApiClient:
    return control_plane.api_client()


def requests(log: Path, namespace: str) -> list[dict[str, Any]]:
    """What the operator of a namespace asked for."""
    user = f"system:serviceaccount:{namespace}:{NAME}"
    events = (json.loads(line) for line in log.read_text().splitlines())
    return [event for event in events if event["user"]["username"] == user]


def used_rights(events: Iterable[dict[str, Any]]) -> set[Right]:
    used = set()
    for event in events:
        if target := event.get("objectRef"):
            resource, below = target["resource"], target.get("subresource")
            where = f"{resource}/{below}" if below else resource
            used.add((target.get("apiGroup", ""), where, event["verb"]))
    return used


def granted_rights(rules: Iterable[Rule]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def live_through_everything(user: User, operator: OperatorProcess, place: Place) -> None:
    """A whole sweep and its predictions, with an edit of all that can be edited."""
    operator.start()
    whole = sweep(place, seconds=2, grid=sweep_manifest("x", place.uri)["spec"]["grid"])
    user.apply_sweep(whole)
    target = prediction_manifest("p", "dense", publish={"configMapName": "one"})
    user.apply_prediction(target)
    wait_until(lambda: len(place.traces.read("start")) >= 3, "points to train")
    user.apply_sweep({**whole, "spec": {**whole["spec"], "suspend": True}})
    user.wait_for(lambda: user.sweep("dense"), "Suspended", reason="Suspended")
    user.apply_sweep(whole)
    finished(user)
    user.wait_for(lambda: user.prediction("p"), "Ready")
    target["spec"]["publish"] = {"configMapName": "two"}
    user.apply_prediction(target)
    core = client.CoreV1Api(user.api_client)

    def published() -> set[str]:
        return {
            each.metadata.name for each in core.list_namespaced_config_map(user.namespace).items
        }

    wait_until(lambda: published() >= {"two"} and "one" not in published(), "the new name")
    time.sleep(2)
    assert operator.stop() == 0


def test_the_charts_rights_suffice_and_are_all_used(
    operator: OperatorProcess,
    user: User,
    node: ProcessNode,
    place: Place,
    dev_cluster: DevCluster,
) -> None:
    live_through_everything(user, operator, place)
    seen = requests(dev_cluster.directory / "audit.log", user.namespace)
    refused = [
        (event["verb"], event["requestURI"])
        for event in seen
        if event["responseStatus"]["code"] == 403
    ]
    assert refused == []
    granted = granted_rights([*RULES, *lease_rules(NAME)])
    used = used_rights(seen)
    assert granted - used - UNSEEN == set(), "granted in vain"
    assert used <= granted


def test_without_the_right_to_finalizers_no_job_could_block_its_owners_deletion(
    control_plane: ControlPlane, user: User
) -> None:
    """Why two rights are granted that no request shows."""
    owner_body = user.apply_sweep(sweep_manifest("owner", "s3://bucket/owner"))
    owner = Owner(SWEEP, user.namespace, "owner", owner_body["metadata"]["uid"])
    kubeconfig = control_plane.kubeconfig_for_service_account(user.namespace, NAME)
    cluster = Cluster(config.new_client_from_config(config_file=str(kubeconfig)))
    body = {
        "metadata": {"name": "job", "ownerReferences": [owner.reference()]},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}},
    }
    assert cluster.create(JOB, user.namespace, body)
    without = [rule for rule in RULES if not any("finalizers" in r for r in rule["resources"])]
    role: Any = {"rules": without}
    client.RbacAuthorizationV1Api(user.api_client).patch_namespaced_role(
        NAME, user.namespace, role
    )

    def is_refused() -> bool:
        other = {**body, "metadata": {**body["metadata"], "name": f"job-{secrets.token_hex(3)}"}}
        try:
            cluster.create(JOB, user.namespace, other)
        except Refused as error:
            return "cannot set blockOwnerDeletion" in str(error)
        return False

    wait_until(is_refused, "the right to be gone", 20)


CONTAINER = {"name": "trainer", "image": "x"}
