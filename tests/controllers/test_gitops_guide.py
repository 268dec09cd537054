"""Two readers of the GitOps guide, with a control plane each: one has Flux, the other Argo CD."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from devcluster.build import TOOLS, kubectl_path
from devcluster.control_plane import ControlPlane
from devcluster.kubelet.settings import NodeOptions
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import ProcessNode
from tests.controllers.argo_cd import ARGO_CD, Application, ArgoCD
from tests.controllers.controller import Json, manifests_of
from tests.controllers.git_repository import GitRepository
from tests.controllers.repository import Repository, source_definitions
from tests.controllers.sample import TRAINING, research, succeeded
from tests.controllers.test_flux import FLUX, kustomize_controller
from tests.gitops.health import GITOPS
from tests.isoloss_operator.conftest import Place
from tests.support.cluster import wait_until
from tests.support.crds import install, install_crds
from tests.support.operator_process import OperatorProcess, User, apply_account
from tests.support.pages import CHECKOUT, blocks
from tests.support.walk import Walk

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

PAGE = CHECKOUT / "docs" / "guides" / "gitops.md"
FLUX_SYSTEM = "flux-system"
NAMESPACE = "research"


def read_page(
    folder: Path,
    plane: ControlPlane,
    storage: ObjectStorage,
    passed_over: str,
    **environment: str,
) -> Walk:
    """An administrator at the root of a checkout, who passes over the commands with this word in them."""
    checkout, programs = folder / "checkout", folder / "programs"
    shutil.copytree(GITOPS, checkout / "gitops")
    programs.mkdir()
    (programs / "kubectl").symlink_to(kubectl_path())
    (programs / "argocd").symlink_to(TOOLS[ARGO_CD].path)
    given = [f"{name}={value}" for name, value in storage.environment().items()]
    literals = " ".join(f"--from-literal={each}" for each in given)
    asked = "--from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=..."
    typing = {
        "HOME": str(folder),
        "KUBECONFIG": str(plane.admin_kubeconfig),
        **environment,
        "PATH": f"{programs}:{os.defpath}",
    }
    walk = Walk(checkout, typing, {asked: literals})
    walk.open(PAGE, "kubectl", "argocd")
    walk.left = [block for block in walk.left if passed_over not in block.text]
    return walk


@pytest.fixture
def operator(
    own_control_plane: ControlPlane, own_storage: ObjectStorage, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """The operator with the prefixes that the page asks for, not started yet."""
    (values,) = (
        yaml.safe_load(each.text)
        for each in blocks(PAGE)
        if each.language == "yaml" and "allowedPrefixes" in each.text
    )
    allowed = json.dumps(values["storage"]["allowedPrefixes"])
    environment = {**own_storage.environment(), "ISOLOSS_ALLOWED_STORAGE": allowed}
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
    own_control_plane: ControlPlane,
    operator: OperatorProcess,
    node: ProcessNode,
    own_storage: ObjectStorage,
    tmp_path: Path,
) -> None:
    """With the repository of the sample, but for a sweep that this machine can train."""
    user = User(own_control_plane.api_client(), NAMESPACE)
    body: Any = {"metadata": {"name": FLUX_SYSTEM}}
    client.CoreV1Api(user.api_client).create_namespace(body)
    install(user.api_client, [*manifests_of(FLUX, "config/crd/bases"), *source_definitions()])
    walk = read_page(tmp_path, own_control_plane, own_storage, "argocd")
    begin(walk, user, operator)

    walk.step("kubectl apply -f gitops/flux/repository.yaml")
    place = bucket_of_the_page(own_storage)
    repository = Repository(user.api_client, FLUX_SYSTEM, "pretraining")
    repository.commit(research(user, place, storage=storage_of_the_sample(place)))
    flux = kustomize_controller(own_control_plane, tmp_path / "flux", FLUX_SYSTEM)

    walk.step("kubectl apply -f gitops/flux/kustomizations.yaml")
    assert "condition met" in walk.step("kubectl -n flux-system wait")
    assert walk.left == []
    wait_until(lambda: succeeded(user, TRAINING), "the training Job, with the answer")
    flux.end()
    repository.close()


@pytest.mark.timeout(1200)
def test_a_reader_with_argo_cd_alone_gets_from_nothing_to_the_training_job(
    own_control_plane: ControlPlane,
    operator: OperatorProcess,
    node: ProcessNode,
    own_storage: ObjectStorage,
    tmp_path: Path,
) -> None:
    """Also out of the sync that waits for a sweep that was committed suspended."""
    user = User(own_control_plane.api_client(), NAMESPACE)
    argo_cd = ArgoCD(own_control_plane, tmp_path / "argo-cd")
    try:
        argo_cd.wait_until_ready()
        walk = read_page(tmp_path, own_control_plane, own_storage, "flux", **argo_cd.command_line)
        begin(walk, user, operator)

        walk.step("kubectl -n argocd patch configmap argocd-cm")
        place = bucket_of_the_page(own_storage)
        storage = storage_of_the_sample(place)
        repository = GitRepository(tmp_path / "pretraining")
        repository.commit(research(user, place, storage=storage, suspend=True))
        application = Application(argo_cd, NAMESPACE, repository)
        file = walk.folder / "gitops" / "argocd" / "application.yaml"
        manifest = yaml.safe_load(file.read_text())
        file.write_text(
            file.read_text().replace(manifest["spec"]["source"]["repoURL"], repository.url)
        )
        application.name = manifest["metadata"]["name"]
        walk.step("kubectl apply -f gitops/argocd/application.yaml")
        application.wait_for_health("Suspended")

        resumed = application.commit(research(user, place, storage=storage))
        walk.step("argocd app terminate-op")
        assert walk.left == []
        application.wait_until_healthy(resumed)
        assert succeeded(user, TRAINING)
    finally:
        argo_cd.end()


def begin(walk: Walk, user: User, operator: OperatorProcess) -> None:
    """What the page asks for before its reader begins."""
    walk.step("kubectl create namespace research")
    install_crds(user.api_client)
    apply_account(user.api_client, NAMESPACE)
    operator.start()


def bucket_of_the_page(storage: ObjectStorage) -> Place:
    """Empty, because every test has an S3 server of its own."""
    place = Place(storage, "lm-sweeps")
    storage.create_bucket(place.bucket)
    return place


def storage_of_the_sample(place: Place) -> Json:
    """With the Secret that the page has its reader make."""
    sample = yaml.safe_load((GITOPS / "repository/research/sweep/sweep.yaml").read_text())
    return {"uri": place.uri, "secretName": sample["spec"]["storage"]["secretName"]}
