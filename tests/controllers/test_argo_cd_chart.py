"""The chart as Argo CD installs it from the Application that gitops/ has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from devcluster.control_plane import ControlPlane
from tests.controllers.argo_cd import Application, ArgoCD
from tests.controllers.git_repository import GitRepository
from tests.deploy.chart import CHART, NAMESPACE, ROOT
from tests.gitops.test_repository import VALUES
from tests.support.cluster import wait_until
from tests.support.operator_process import User, sweep_manifest

pytestmark = pytest.mark.cluster


@pytest.fixture
def argo_cd(own_control_plane: ControlPlane, tmp_path: Path) -> Iterator[ArgoCD]:
    """Beside a control plane without our CRDs."""
    running = ArgoCD(own_control_plane, tmp_path / "argo-cd")
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.end()


@pytest.mark.timeout(600)
def test_the_chart_shows_no_drift_and_prune_keeps_its_crds(
    argo_cd: ArgoCD, tmp_path: Path
) -> None:
    """Nor are the pods of `helm test` made."""
    repository = GitRepository(tmp_path / "charts")
    files = [path for path in CHART.rglob("*") if path.is_file()]
    repository.commit({str(path.relative_to(ROOT)): path.read_text() for path in files})
    application = Application(argo_cd, NAMESPACE, repository, "chart.yaml")

    def is_synced() -> bool:
        sync = application.status().get("sync", {})
        compared = sync.get("comparedTo", {}).get("source", {})
        return bool(
            sync.get("status") == "Synced" and compared == application.read()["spec"]["source"]
        )

    newest = {"targetRevision": "main"}
    application.apply(**newest)
    # Argo CD lists the cluster's kinds anew after the CRDs, and first finds much of the release missing.
    wait_until(is_synced, "the release to be in sync", 180)
    synced = application.operation()
    for _ in range(3):
        application.refresh("hard")
        assert is_synced()
    assert application.operation() == synced
    pods: Any = client.CoreV1Api(argo_cd.api_client).list_namespaced_pod(NAMESPACE).items
    assert not [pod for pod in pods if "-test-" in pod.metadata.name]

    user = User(argo_cd.api_client, NAMESPACE)
    uid = user.apply_sweep(sweep_manifest("dense", "s3://lm-sweeps/dense"))["metadata"]["uid"]
    without_crds = {**VALUES, "crds": {"install": False}}
    application.apply(**newest, helm={"releaseName": "isoloss", "valuesObject": without_crds})
    wait_until(is_synced, "the release without CRDs to be in sync", 120)
    assert user.sweep("dense")["metadata"]["uid"] == uid
