"""What the demo's page says about the time after it, typed on a cluster that lies where the demo's does."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from devcluster.build import kubectl_path
from devcluster.cluster import DevCluster
from devcluster.object_storage import ObjectStorage
from tests.support.crds import install_crds
from tests.support.operator_process import User, sweep_manifest
from tests.support.pages import CHECKOUT
from tests.support.walk import Walk

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

PAGE = CHECKOUT / "docs" / "guides" / "demo.md"
NAMESPACE = "research"


@pytest.fixture
def research(api_client: client.ApiClient) -> Iterator[User]:
    """The demo's namespace with a sweep and a published answer."""
    install_crds(api_client)
    core = client.CoreV1Api(api_client)
    name: Any = {"metadata": {"name": NAMESPACE}}
    core.create_namespace(name)
    user = User(api_client, NAMESPACE)
    user.apply_sweep(sweep_manifest("demo", "s3://demo/sweeps"))
    answer: Any = {"metadata": {"name": "demo-hyperparams"}, "data": {"learningRate": "1.5e-3"}}
    core.create_namespaced_config_map(NAMESPACE, answer)
    yield user
    core.delete_namespace(NAMESPACE)


def test_resources_answer_and_store_are_reached_by_the_commands_of_the_page(
    research: User, dev_cluster: DevCluster, object_storage: ObjectStorage, tmp_path: Path
) -> None:
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo" / "cluster").symlink_to(dev_cluster.directory)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(kubectl_path())
    path = f"{programs}:{os.environ['PATH']}"
    own = {"PATH": path, "KUBECACHEDIR": str(tmp_path), "PYTHONPATH": str(CHECKOUT)}
    walk = Walk(tmp_path, {**os.environ, **own})
    walk.open(PAGE, "export")
    printed = walk.step("export KUBECONFIG=.demo/cluster")
    assert walk.left == []
    for message in ("scalingsweep.isoloss.dev/demo", "batchSizes", 'learningRate: "1.5e-3"'):
        assert message in printed
