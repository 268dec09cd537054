"""The real control plane, S3 server and process nodes that tests share.

One plane per pytest session, in a temporary folder of its own, started by whichever worker needs
it first and stopped with the session, even one that is killed. With ISOLOSS_TEST_CLUSTER set to
a folder of one's own, the plane found or started there is used and left running.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from devcluster.build import kubectl_path
from devcluster.cluster import DevCluster, remove_abandoned
from devcluster.control_plane import ControlPlane
from devcluster.files import exclusive
from devcluster.kubelet.settings import NodeOptions
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import ProcessNode

if TYPE_CHECKING:
    from kubernetes import client

FOLDER = "ISOLOSS_TEST_CLUSTER"
OWNER = "ISOLOSS_TEST_CLUSTER_OWNER"
PREFIX = "isoloss-cluster-"
NODE_LABEL = "devcluster.isoloss.dev/namespace"
NODE_SELECTOR = "scheduler.alpha.kubernetes.io/node-selector"


def begin_session() -> None:
    """Choose the session's folder; workers of pytest-xdist inherit the choice."""
    if FOLDER not in os.environ:
        # Only named here, and made by the first who needs it: most sessions need none.
        name = f"{PREFIX}{secrets.token_hex(6)}"
        os.environ[FOLDER] = str(Path(tempfile.gettempdir()) / name)
        os.environ[OWNER] = str(os.getpid())


def end_session() -> None:
    """Stop and delete what this session started."""
    if os.environ.get(OWNER) != str(os.getpid()):
        return
    folder = Path(os.environ.pop(FOLDER))
    del os.environ[OWNER]
    if folder.exists():
        DevCluster(folder).stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def dev_cluster() -> DevCluster:
    """The folder of the session's cluster; nothing in it need run yet."""
    cluster = DevCluster(Path(os.environ[FOLDER]))
    cluster.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = os.environ.get(OWNER)
    with exclusive(cluster.directory / "start.lock"):
        if owner is not None:
            cluster.stop_with(int(owner), remove=True)
            remove_abandoned(cluster.directory.parent, PREFIX)
    return cluster


@pytest.fixture(scope="session")
def control_plane(dev_cluster: DevCluster) -> ControlPlane:
    """The session's control plane, running."""
    with exclusive(dev_cluster.directory / "start.lock"):
        dev_cluster.control_plane.start()
    return dev_cluster.control_plane


@pytest.fixture(scope="session")
def object_storage(dev_cluster: DevCluster) -> ObjectStorage:
    """The session's S3 server, running. A test that stops it needs its own: `own_storage`."""
    with exclusive(dev_cluster.directory / "start.lock"):
        dev_cluster.object_storage.start()
    return dev_cluster.object_storage


@pytest.fixture
def own_storage(dev_cluster: DevCluster) -> Iterator[ObjectStorage]:
    """An S3 server of this test alone, which it may stop and start."""
    storage = ObjectStorage(dev_cluster.directory / "own" / f"s3-{secrets.token_hex(4)}")
    storage.start()
    yield storage
    storage.stop()
    shutil.rmtree(storage.directory, ignore_errors=True)


@pytest.fixture
def own_control_plane(dev_cluster: DevCluster) -> Iterator[ControlPlane]:
    """A control plane of this test alone, whose components it may kill; about 500 MB."""
    plane = ControlPlane(dev_cluster.directory / "own" / f"plane-{secrets.token_hex(4)}")
    plane.start()
    yield plane
    plane.stop()
    shutil.rmtree(plane.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def api_client(control_plane: ControlPlane) -> client.ApiClient:
    """An administrator's client of the session's control plane."""
    return control_plane.api_client()


@pytest.fixture
def namespace_name() -> str:
    """That no other test has."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def namespace(api_client: client.ApiClient, namespace_name: str) -> Iterator[str]:
    """A fresh namespace whose pods run on the nodes made for it alone, deleted afterwards."""
    from kubernetes import client  # every test session imports this module; this takes a second

    name = namespace_name
    core = client.CoreV1Api(api_client)
    annotations = {NODE_SELECTOR: f"{NODE_LABEL}={name}"}
    body: Any = {"metadata": {"name": name, "annotations": annotations}}
    core.create_namespace(body)
    wait_until(lambda: _has_default_account(core, name), "the default service account")
    yield name
    core.delete_namespace(name)


def _has_default_account(core: client.CoreV1Api, namespace: str) -> bool:
    accounts: Any = core.list_namespaced_service_account(namespace).items
    return any(account.metadata.name == "default" for account in accounts)


@dataclass(frozen=True)
class NodeFactory:
    """Makes process nodes that only pods of one namespace are placed on."""

    cluster: DevCluster
    namespace: str
    made: list[ProcessNode]

    def __call__(self, **options: object) -> ProcessNode:
        """Start one more node; the options are those of NodeOptions."""
        labels = {NODE_LABEL: self.namespace}
        made = NodeOptions(labels=labels, **options)  # type: ignore[arg-type]
        node = self.cluster.node(f"node-{self.namespace}-{len(self.made)}", made)
        self.made.append(node)
        node.start()
        return node


@pytest.fixture
def make_node(
    control_plane: ControlPlane, dev_cluster: DevCluster, namespace: str
) -> Iterator[NodeFactory]:
    """Makes nodes for the test's namespace; they are taken away with it."""
    assert control_plane.is_running()
    factory = NodeFactory(dev_cluster, namespace, [])
    yield factory
    for node in factory.made:
        node.remove()


@pytest.fixture
def process_node(make_node: NodeFactory) -> ProcessNode:
    """One node for the test's namespace."""
    return make_node()


def wait_until(
    holds: Callable[[], object], what: str | Callable[[], str], seconds: float = 60
) -> None:
    """Wait until `holds()` is true; fails naming `what`, perhaps as it stands then, after `seconds`."""
    if not any(holds() for _ in looks(seconds)):
        named = what if isinstance(what, str) else what()
        pytest.fail(f"waited {seconds:.0f} s for {named}, which did not come")


def looks(seconds: float) -> Iterator[None]:
    """One turn for each look at what is waited for, the last of them after `seconds`.

    Rarer with time: a tenth of what has passed, between 0.1 and 0.5 s. Looks every 0.1 s
    were a quarter of the requests to the tests' API server.
    """
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        yield
        time.sleep(min(0.5, max(0.1, passed / 10)))
    yield


class Kubectl:
    """Runs kubectl as administrator."""

    def __init__(self, plane: ControlPlane) -> None:
        self._environment = {"KUBECONFIG": str(plane.admin_kubeconfig), "PATH": os.defpath}
        self._environment["HOME"] = str(plane.directory)  # its discovery cache, off the user's

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(kubectl_path()), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=self._environment,
        )
