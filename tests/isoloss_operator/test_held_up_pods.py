"""Pods that do not start, and pods that do not end: said in the API server's own words, on a real one."""

from typing import Any

import pytest
from kubernetes import client

from devcluster.process_node import ProcessNode
from isoloss_operator.cluster.client import Cluster
from isoloss_operator.cluster.event_reader import EventReader
from tests.isoloss_operator.conftest import SMALL_POINTS, Place, finished, sweep
from tests.support.cluster import wait_until
from tests.support.operator_process import OperatorProcess, User, conditions

pytestmark = [pytest.mark.cluster, pytest.mark.s3]


def message(user: User, kind: str = "Ready") -> str:
    return str(conditions(user.sweep("dense")).get(kind, {}).get("message", ""))


def test_a_quota_without_room_for_pods_is_named_until_it_has_room(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """The API server takes the Job, and its controller is refused every pod."""
    core = client.CoreV1Api(user.api_client)
    quota: Any = {"metadata": {"name": "gpus"}, "spec": {"hard": {"pods": "0"}}}
    core.create_namespaced_resource_quota(user.namespace, quota)
    wait_until(lambda: _is_counted(core, user.namespace), "the quota to be counted")
    operator.environment["ISOLOSS_POD_STARTING_SECONDS"] = "2"
    operator.environment["ISOLOSS_RESYNC_SECONDS"] = "2"
    operator.start()
    user.apply_sweep(sweep(place))
    user.wait_for(lambda: user.sweep("dense"), "Ready", "False", "PodWaiting")
    assert "exceeded quota: gpus" in message(user)
    assert "exceeded quota: gpus" in message(user, "DataReady")
    core.delete_namespaced_resource_quota("gpus", user.namespace)
    assert finished(user)["status"]["points"]["succeeded"] == SMALL_POINTS


def _is_counted(core: client.CoreV1Api, namespace: str) -> bool:
    status = core.read_namespaced_resource_quota("gpus", namespace).status
    return bool(status and status.hard)


def test_a_container_that_outlives_the_trainer_does_not_hold_up_a_sweep(
    operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """As a mesh's proxy does. The trainer's exit ends the attempt, uncharged where it succeeded."""
    manifest = sweep(place, parallelism=8)
    containers = manifest["spec"]["podTemplate"]["spec"]["containers"]
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    proxy = {"name": "proxy", "image": "synthetic", "command": ["sleep", "3600"]}
    containers.append({**proxy, "securityContext": security})
    operator.environment["ISOLOSS_RESYNC_SECONDS"] = "2"
    operator.start()
    user.apply_sweep(manifest)
    ended = finished(user)
    assert ended["status"]["points"]["succeeded"] == SMALL_POINTS
    assert not any(record.attempts.charged for record in place.ledger(ended).points)
    assert set(place.traces.starts().values()) == {1}
    wait_until(lambda: not running(user), "the proxies to be ended")


def running(user: User) -> list[Any]:
    return [pod for pod in user.pods() if pod.status.phase == "Running"]


def test_the_newest_warning_about_an_object_is_read_with_the_operators_own_rights(
    cluster: Cluster, user: User
) -> None:
    """Such as that of a volume that is never mounted, which is in no status."""
    core = client.CoreV1Api(user.api_client)
    for number, (name, kind, words) in enumerate(
        (
            ("pod-1", "Warning", "MountVolume.SetUp failed: no such secret"),
            ("pod-1", "Warning", "Unable to attach or mount volumes: timed out"),
            ("pod-1", "Normal", "Successfully assigned"),
            ("pod-2", "Warning", "of another pod"),
        )
    ):
        moment = f"2026-11-24T12:00:0{number}Z"
        regarding = {"kind": "Pod", "namespace": user.namespace, "name": name}
        body: Any = {
            "metadata": {"name": f"event-{number}"},
            "involvedObject": regarding,
            "reason": "FailedMount",
            "message": words,
            "type": kind,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
        }
        core.create_namespaced_event(user.namespace, body)
    reader = EventReader(cluster)
    found = reader.newest_warning(user.namespace, ("pod-1", "job-1"))
    assert found == "FailedMount: Unable to attach or mount volumes: timed out"
    assert reader.newest_warning(user.namespace, ("job-1",)) == ""
