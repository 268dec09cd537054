"""The control plane survives killed components, and ends with its owner."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from devcluster.build import CONTROL_PLANE
from devcluster.cluster import DevCluster, remove_abandoned
from devcluster.control_plane import ControlPlane
from devcluster.daemon import Daemon
from devcluster.process_node import ProcessNode
from tests.support.cluster import wait_until
from tests.support.operator_process import wait_for_right
from tests.support.pods import Workload, pod_spec

pytestmark = pytest.mark.cluster


def test_a_service_account_has_only_its_own_rights(
    control_plane: ControlPlane, api_client: Any, namespace: str
) -> None:
    path = control_plane.kubeconfig_for_service_account(namespace, "default")
    limited = client.CoreV1Api(config.new_client_from_config(str(path)))
    with pytest.raises(client.ApiException) as refusal:
        limited.list_namespaced_pod(namespace)
    assert refusal.value.status == 403
    assert f"system:serviceaccount:{namespace}:default" in refusal.value.body
    body = {
        "metadata": {"name": "view"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "view",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    client.RbacAuthorizationV1Api(api_client).create_namespaced_role_binding(namespace, body)
    wait_for_right(api_client, (namespace, "default"), namespace, ("", "pods"), "list")
    assert limited.list_namespaced_pod(namespace).items == []


@pytest.mark.whole
@pytest.mark.slow
def test_pods_outlive_a_killed_api_server_and_objects_a_stopped_plane(
    own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = own_control_plane
    node = ProcessNode(plane, tmp_path / "node")
    node.start()
    try:
        workload = Workload(plane.api_client(), "default")
        workload.create_job(pod_spec("sleep 3; exit 0"))
        wait_until(
            lambda: any(pod.status.phase == "Running" for pod in workload.pods()), "the pod to run"
        )
        url = plane.url
        plane.component("kube-apiserver").kill()
        assert not plane.is_running()
        plane.start_component("kube-apiserver")
        wait_until(lambda: "Complete" in workload.conditions(), "the Job to complete")
        plane.stop()
        assert not any(plane.component(name).pid() for name in CONTROL_PLANE)
        plane.start()
        assert plane.url == url
        assert "Complete" in workload.conditions()
        workload.create_job(pod_spec("true"), name="later")
        wait_until(lambda: "Complete" in workload.conditions("later"), "a later Job to complete")
    finally:
        node.stop()


def test_everything_ends_with_its_owner(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "cluster")
    cluster.object_storage.start()
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    cluster.stop_with(owner.pid, remove=True)
    assert cluster.object_storage.is_running()
    owner.communicate(b"\n")
    wait_until(lambda: not cluster.directory.exists(), "the cluster's folder to go")
    assert not cluster.object_storage.is_running()


@pytest.mark.whole
def test_a_cluster_killed_with_its_owner_and_its_reaper_is_removed_by_the_next_session(
    tmp_path: Path,
) -> None:
    """Nothing else is removed: neither live clusters nor folders without an owner."""
    dead, alive = DevCluster(tmp_path / "x-dead"), DevCluster(tmp_path / "x-alive")
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    dead.object_storage.start()
    for cluster, pid in ((dead, owner.pid), (alive, os.getpid())):
        cluster.stop_with(pid, remove=True)
        Daemon("reaper", cluster.directory).kill()
    foreign = [tmp_path / "x-foreign", tmp_path / "x-file"]
    foreign[0].mkdir()
    foreign[1].write_text("")
    (tmp_path / "x-link").symlink_to(dead.directory)
    assert remove_abandoned(tmp_path, "x-") == [], "its owner lives"
    owner.communicate(b"\n")
    assert remove_abandoned(tmp_path, "x-") == [dead.directory]
    assert not dead.object_storage.is_running()
    assert not dead.directory.exists()
    assert alive.directory.exists()
    assert foreign[0].exists()


def test_a_cluster_with_a_live_reaper_is_left_to_it(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "x-cluster")
    owner = subprocess.Popen(["sleep", "600"])
    cluster.stop_with(owner.pid, remove=True)
    reaper = Daemon("reaper", cluster.directory)
    reaper.signal(signal.SIGSTOP)
    owner.kill()
    owner.wait()
    assert remove_abandoned(tmp_path, "x-") == []
    reaper.signal(signal.SIGCONT)
    wait_until(lambda: not cluster.directory.exists(), "the reaper to do its work")


def test_a_daemon_is_not_confused_with_another_process_of_its_pid(tmp_path: Path) -> None:
    daemon = Daemon("sleeper", tmp_path)
    daemon.start(["sleep", "600"], {"PATH": os.defpath})
    pid = daemon.pid()
    assert pid is not None
    daemon.identity.write_text(f'{{"pid": {pid}, "start_time": "1"}}')
    assert daemon.pid() is None
    daemon.stop()  # must not signal the other process
    os.kill(pid, 0)
    os.kill(pid, 9)


def test_a_daemon_that_ends_while_starting_says_why(tmp_path: Path) -> None:
    daemon = Daemon("broken", tmp_path)
    daemon.start(["sh", "-c", "echo no such luck; exit 1"], {"PATH": os.defpath})
    with pytest.raises(RuntimeError, match="no such luck"):
        daemon.wait_until(lambda: False, 30)
