"""A reader of the GitOps guide, who has a control plane with Flux and types what stands there for Flux."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from devcluster.build import kubectl_path
from devcluster.control_plane import ControlPlane
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import NodeOptions, ProcessNode
from tests.controllers.controller import install, manifests_of
from tests.controllers.repository import Repository, source_definitions
from tests.controllers.sample import research
from tests.controllers.test_flux import FLUX, kustomize_controller
from tests.gitops.health import GITOPS
from tests.isoloss_operator.conftest import Place
from tests.support.cluster import wait_until
from tests.support.crds import install_crds
from tests.support.operator_process import OperatorProcess, User, apply_account
from tests.support.pages import CHECKOUT, blocks
from tests.support.walk import Walk

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

PAGE = CHECKOUT / "docs" / "guides" / "gitops.md"
SYSTEM = "flux-system"
NAMESPACE = "research"


@pytest.fixture
def walk(own_control_plane: ControlPlane, object_storage: ObjectStorage, tmp_path: Path) -> Walk:
    """An administrator of a cluster with Flux's kinds, at the root of a checkout."""
    user = own_control_plane.api_client()
    body: Any = {"metadata": {"name": SYSTEM}}
    client.CoreV1Api(user).create_namespace(body)
    install(user, [*manifests_of(FLUX, "config/crd/bases"), *source_definitions()])
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    shutil.copytree(GITOPS, checkout / "gitops")
    programs.mkdir()
    (programs / "kubectl").symlink_to(kubectl_path())
    environment = {
        "PATH": f"{programs}:{os.defpath}",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(own_control_plane.admin_kubeconfig),
    }
    given = [f"{name}={value}" for name, value in object_storage.environment().items()]
    literals = " ".join(f"--from-literal={each}" for each in given)
    asked = "--from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=..."
    walk = Walk(checkout, environment, {asked: literals})
    walk.open(PAGE, "kubectl")
    return walk


@pytest.fixture
def operator(
    own_control_plane: ControlPlane, object_storage: ObjectStorage, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """The operator with the prefixes that the page asks for, not started yet."""
    (values,) = (
        yaml.safe_load(each.text)
        for each in blocks(PAGE)
        if each.language == "yaml" and "allowedPrefixes" in each.text
    )
    allowed = json.dumps(values["storage"]["allowedPrefixes"])
    environment = {**object_storage.environment(), "ISOLOSS_ALLOWED_STORAGE": allowed}
    process = OperatorProcess(own_control_plane, [NAMESPACE], tmp_path, environment)
    yield process
    process.end()


@pytest.fixture
def node(own_control_plane: ControlPlane, tmp_path: Path) -> Iterator[ProcessNode]:
    made = ProcessNode(own_control_plane, tmp_path / "node", "node", NodeOptions(cpu="64"))
    made.start()
    yield made
    made.remove()


@pytest.mark.timeout(1200)
def test_a_reader_with_flux_alone_gets_from_nothing_to_the_training_job(
    walk: Walk,
    own_control_plane: ControlPlane,
    operator: OperatorProcess,
    node: ProcessNode,
    object_storage: ObjectStorage,
    tmp_path: Path,
) -> None:
    """With the repository of the sample, but for a sweep that this machine can train."""
    user = User(own_control_plane.api_client(), NAMESPACE)
    walk.step("kubectl create namespace research")
    install_crds(user.api_client)
    apply_account(user.api_client, NAMESPACE)
    operator.start()

    walk.step("kubectl apply -f gitops/flux/repository.yaml")
    place = Place(object_storage, "lm-sweeps")
    object_storage.create_bucket(place.bucket)
    sample = yaml.safe_load((GITOPS / "repository/research/sweep/sweep.yaml").read_text())
    secret = sample["spec"]["storage"]["secretName"]
    repository = Repository(user.api_client, SYSTEM, "pretraining")
    storage = {"uri": place.uri, "secretName": secret}
    repository.commit(research(user, place, storage=storage))
    flux = kustomize_controller(own_control_plane, tmp_path / "flux", SYSTEM)

    walk.step("kubectl apply -f gitops/flux/kustomizations.yaml")
    assert "condition met" in walk.step("kubectl -n flux-system wait")
    assert walk.left == []
    batch = client.BatchV1Api(user.api_client)

    def has_trained() -> bool:
        job: Any = batch.read_namespaced_job_status("dense-8b-continued-1", NAMESPACE)
        return bool(job.status and job.status.succeeded)

    wait_until(has_trained, "the training Job, with learning rate and batch size")
    flux.end()
    repository.close()
