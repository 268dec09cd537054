"""Sweeps whose Jobs MultiKueue runs in another cluster: two control planes, a real Kueue in each."""

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from devcluster.cluster import DevCluster
from devcluster.control_plane import ControlPlane
from devcluster.kubelet.settings import NodeOptions
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import ProcessNode
from tests.controllers.kueue import API, GROUP, SYSTEM, VERSION, Kueue, make_queue
from tests.controllers.test_kueue import QUOTA, admitted, queued, training, workloads
from tests.isoloss_operator.conftest import SMALL_POINTS, Json, Place, finished
from tests.isoloss_operator.test_kueue import grant_workloads
from tests.support.cluster import wait_until
from tests.support.crds import apply
from tests.support.operator_process import STORE_SECRET, OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3, pytest.mark.xdist_group("kueue")]

CHECK = "multikueue"


@pytest.fixture(scope="module")
def other_plane(
    dev_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """The control plane of the cluster that has the nodes, and its Kueue."""
    plane = ControlPlane(dev_cluster.directory / "own" / "worker")
    plane.start()
    kueue = Kueue(plane, tmp_path_factory.mktemp("worker"))
    node = ProcessNode(
        plane, dev_cluster.directory / "nodes" / "worker", "worker", NodeOptions(cpu="64")
    )
    node.start()
    yield plane
    node.remove()
    kueue.end()
    plane.stop()
    shutil.rmtree(plane.directory, ignore_errors=True)


@pytest.fixture(scope="module")
def connected(
    control_plane: ControlPlane,
    other_plane: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The operator's cluster sends Jobs to the other one: the name of the check that does."""
    folder = tmp_path_factory.mktemp("manager")
    kueue = Kueue(control_plane, folder, gcInterval="2s", origin="tests")
    _connect(control_plane.api_client(), other_plane.admin_kubeconfig)
    yield CHECK
    kueue.end()


@pytest.fixture
def worker(other_plane: ControlPlane, namespace: str, object_storage: ObjectStorage) -> User:
    """The same namespace in the other cluster, with a queue of the same name that has room for three pods."""
    user = User(other_plane.api_client(), namespace)
    body: Any = {"metadata": {"name": namespace}}
    client.CoreV1Api(user.api_client).create_namespace(body)
    user.create_secret(STORE_SECRET, object_storage.environment())
    make_queue(user.api_client, namespace, QUOTA)
    return user


@pytest.fixture
def queue(connected: str, worker: User, user: User, operator: OperatorProcess) -> str:
    """A queue in the operator's cluster, which runs no pods itself."""
    grant_workloads(user)
    operator.environment["ISOLOSS_KUEUE"] = "true"
    return make_queue(user.api_client, user.namespace, 100, (connected,))


def _connect(api_client: client.ApiClient, kubeconfig: Path) -> None:
    """A MultiKueueCluster, and the check that sends the Jobs of a ClusterQueue to it."""
    name = "worker"
    secret: Any = {"metadata": {"name": name}, "stringData": {"kubeconfig": _flat(kubeconfig)}}
    client.CoreV1Api(api_client).create_namespaced_secret(SYSTEM, secret)
    source = {"kubeConfig": {"locationType": "Secret", "location": name}}
    reference = {"apiGroup": GROUP, "kind": "MultiKueueConfig", "name": CHECK}
    check = {"controllerName": f"{GROUP}/multikueue", "parameters": reference}
    for plural, kind, called, spec in (
        ("multikueueclusters", "MultiKueueCluster", name, {"clusterSource": source}),
        ("multikueueconfigs", "MultiKueueConfig", CHECK, {"clusters": [name]}),
        ("admissionchecks", "AdmissionCheck", CHECK, check),
    ):
        body = {"apiVersion": API, "kind": kind, "metadata": {"name": called}, "spec": spec}
        apply(api_client, plural, body)
    objects = client.CustomObjectsApi(api_client)

    def is_active() -> bool:
        found: Any = objects.get_cluster_custom_object(GROUP, VERSION, "admissionchecks", CHECK)
        conditions = found.get("status", {}).get("conditions", ())
        return any(each["type"] == "Active" and each["status"] == "True" for each in conditions)

    wait_until(is_active, "MultiKueue to reach its worker", 120)


def _flat(kubeconfig: Path) -> str:
    """MultiKueue refuses one that names files."""
    content = json.loads(kubeconfig.read_text())
    for each in content["clusters"]:
        authority = Path(each["cluster"].pop("certificate-authority"))
        encoded = base64.b64encode(authority.read_bytes()).decode()
        each["cluster"]["certificate-authority-data"] = encoded
    return json.dumps(content)


def elsewhere(place: Place, queue: str, seconds: float, **spec: Any) -> Json:
    """A sweep that leaves its Jobs to MultiKueue."""
    found = queued(place, queue, seconds, **spec)
    found["spec"]["queue"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    return found


def test_a_sweep_trains_in_another_cluster_within_the_quota_there(
    operator: OperatorProcess, user: User, worker: User, queue: str, place: Place
) -> None:
    """Every point succeeds at its first attempt; the operator's cluster runs no pod, the other keeps no Job."""
    policy = {"retriesPerPoint": 0, "maxFailedPoints": 0}
    operator.start()
    user.apply_sweep(elsewhere(place, queue, 0.1, parallelism=6, failurePolicy=policy))
    most, seen = 0, set()

    def is_done() -> bool:
        nonlocal most
        most = max(most, admitted(worker))
        seen.update(job.metadata.name for job in training(worker))
        status = user.sweep("dense").get("status", {})
        return bool(status.get("points", {}).get("succeeded") == SMALL_POINTS)

    wait_until(is_done, "every point", 300)
    ended = finished(user)
    assert 0 < most <= QUOTA
    assert len(seen) == SMALL_POINTS
    assert not user.pods()
    assert ended["status"]["points"]["failed"] == 0
    charged = [record.attempts.charged for record in place.ledger(ended).points]
    assert not any(charged), charged
    wait_until(lambda: not worker.jobs() and not workloads(worker), "MultiKueue to clean up", 120)


def test_suspension_stops_what_runs_in_the_other_cluster(
    operator: OperatorProcess, user: User, worker: User, queue: str, place: Place
) -> None:
    """And what was trained until then is not trained again."""
    manifest = elsewhere(place, queue, 0.3, parallelism=2)
    operator.start()
    user.apply_sweep(manifest)
    # On a busy machine two may never train at the same time.
    wait_until(lambda: training(worker), "a point to train", 180)
    user.apply_sweep({**manifest, "spec": {**manifest["spec"], "suspend": True}})
    user.wait_for(lambda: user.sweep("dense"), "Suspended", "True", "Suspended")
    wait_until(lambda: not worker.jobs(), "its Jobs to leave the other cluster", 120)
    user.apply_sweep(manifest)
    ended = finished(user)
    assert ended["status"]["points"]["succeeded"] == SMALL_POINTS
    charged = [record.attempts.charged for record in place.ledger(ended).points]
    assert not any(charged), charged
