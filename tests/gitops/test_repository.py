"""The sample repository on a real API server: accepted, without drift, and no field is fought over."""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

import isoloss
from devcluster.control_plane import ControlPlane
from isoloss.yaml_text import read_documents, to_yaml
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.deploy.chart import CHART, NAMESPACE, ROOT, environment
from tests.gitops.health import GITOPS, argocd_health, flux_health, kstatus
from tests.support.cluster import Kubectl, wait_until
from tests.support.crds import install_crds
from tests.support.operator_process import OperatorProcess, User, apply_account

RESEARCH = GITOPS / "repository" / "research"
Json = dict[str, Any]
cluster = pytest.mark.cluster


@pytest.fixture
def kubectl(control_plane: ControlPlane) -> Kubectl:
    return Kubectl(control_plane)


@pytest.fixture
def folder(namespace: str, tmp_path: Path) -> Path:
    """The repository's folder, for the test's own namespace."""
    shutil.copytree(RESEARCH, tmp_path / "research")
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    manifest = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": ["../research"],
    }
    (overlay / "kustomization.yaml").write_text(to_yaml(manifest))
    return overlay


@pytest.fixture
def operator(
    control_plane: ControlPlane, api_client: client.ApiClient, namespace: str, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """An operator that allows no storage: it refuses the sweep, and says so in the status."""
    install_crds(api_client)
    apply_account(api_client, namespace)
    process = OperatorProcess(
        control_plane, [namespace], tmp_path, {"ISOLOSS_ALLOWED_STORAGE": "{}"}
    )
    yield process
    process.end()


def objects(api_client: client.ApiClient, namespace: str) -> list[Json]:
    """Both sweeps and the prediction as stored."""
    user = User(api_client, namespace)
    return [user.sweep("dense"), user.prediction("dense-8b"), user.sweep("dense-8b-probes")]


@cluster
@pytest.mark.parametrize("server_side", [True, False], ids=["server-side", "client-side"])
def test_what_is_applied_shows_no_difference_before_and_after_the_operators_passes(
    server_side: bool,
    folder: Path,
    kubectl: Kubectl,
    operator: OperatorProcess,
    api_client: client.ApiClient,
    namespace: str,
) -> None:
    """A GitOps tool that sees a difference applies again and again."""
    way = f"--server-side={str(server_side).lower()}"
    applied = kubectl("apply", way, "-k", str(folder))
    assert applied.returncode == 0, applied.stderr
    before = kubectl("diff", way, "-k", str(folder))
    assert (before.returncode, before.stdout) == (0, ""), before.stderr

    operator.start()
    wait_until(
        lambda: all("conditions" in each["status"] for each in objects(api_client, namespace)),
        "the statuses",
        180,
    )
    after = kubectl("diff", way, "-k", str(folder))
    assert (after.returncode, after.stdout) == (0, ""), after.stderr

    for body in objects(api_client, namespace):
        fields = [
            each["fieldsV1"].keys()
            for each in body["metadata"]["managedFields"]
            if each["manager"].startswith("isoloss")
        ]
        assert fields == [{"f:status"}], "the operator owns the status and nothing else"
        assert (argocd_health(body)[0], flux_health(body, "research-answer"), kstatus(body)) in {
            ("Degraded", "Failed", "Failed"),
            ("Progressing", "InProgress", "InProgress"),
        }


def manifests() -> list[Json]:
    """The four objects, in the order of their sync waves."""
    names = ("sweep", "prediction", "validation", "training")
    return [read_documents((RESEARCH / n / f"{n}.yaml").read_text())[0] for n in names]


def test_the_training_job_reads_what_the_prediction_publishes() -> None:
    sweep, prediction, _, job = manifests()
    assert prediction["spec"]["sweepRef"]["name"] == sweep["metadata"]["name"]
    published = prediction["spec"]["publish"]["configMapName"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    references = [entry["valueFrom"]["configMapKeyRef"] for entry in container["env"]]
    assert {reference["name"] for reference in references} == {published}
    assert {reference["key"] for reference in references} == {
        "learningRate",
        "batchSize",
        "lawsSha256",
    }


def test_the_validation_is_of_the_predictions_checkpoint_corpus_and_optimizer() -> None:
    """And costs what its tokens and budget say: five runs of 30% of a budget of 44 billion tokens."""
    sweep, prediction, validation, _ = manifests()
    assert prediction["spec"]["validation"]["sweepRef"]["name"] == validation["metadata"]["name"]
    assert validation["spec"]["data"] == sweep["spec"]["data"]
    assert validation["spec"]["optimizer"] == sweep["spec"]["optimizer"]
    (size,) = parse_sweep_spec(validation["spec"]).proxies
    assert size.checkpoint is not None
    assert size.checkpoint.uri == prediction["spec"]["checkpoint"]["uri"]
    assert size.grid is not None
    assert size.grid.around is not None
    assert size.grid.around.prediction == prediction["metadata"]["name"]
    run = 6.0 * 8e9 * size.tokens
    assert run / float(prediction["spec"]["budget"]["flops"]) == pytest.approx(0.3, rel=0.02)
    assert 5 * run < float(validation["spec"]["budget"]["flops"])


def test_argocd_applies_sweep_prediction_and_training_in_this_order() -> None:
    """The validation comes with the training job, in the last wave: Argo CD waits for neither."""
    waves = [
        int(m["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"]) for m in manifests()
    ]
    assert waves == [0, 1, 2, 2]
    (application,) = read_documents((GITOPS / "argocd" / "application.yaml").read_text())
    assert application["spec"]["source"]["path"] == RESEARCH.name


def test_flux_applies_the_training_job_once_the_answer_is_there() -> None:
    *steps, _ = read_documents((GITOPS / "flux" / "kustomizations.yaml").read_text())
    paths = [step["spec"]["path"] for step in steps]
    assert paths == [
        f"./research/{name}" for name in ("sweep", "prediction", "answer", "training")
    ]
    for before, step in pairwise(steps):
        assert step["spec"]["dependsOn"] == [{"name": before["metadata"]["name"]}]
        assert before["spec"].get("wait") or before["spec"]["healthChecks"]
    for path in paths:
        assert (GITOPS / "repository" / path / "kustomization.yaml").exists()
    (awaited,) = (s["spec"]["healthChecks"] for s in steps if "healthChecks" in s["spec"])
    sweep, prediction, _, _ = manifests()
    assert [(each["kind"], each["name"]) for each in awaited] == [
        (each["kind"], each["metadata"]["name"]) for each in (sweep, prediction)
    ]


def test_flux_applies_the_validation_and_nothing_waits_for_it() -> None:
    steps = read_documents((GITOPS / "flux" / "kustomizations.yaml").read_text())
    validation, (_, _, manifest, _) = steps[-1], manifests()
    assert validation["spec"]["path"] == "./research/validation"
    assert "dependsOn" not in validation["spec"]
    names = {each["name"] for step in steps for each in step["spec"].get("dependsOn", [])}
    assert validation["metadata"]["name"] not in names
    awaited = {each["name"] for step in steps for each in step["spec"].get("healthChecks", [])}
    assert manifest["metadata"]["name"] not in awaited


(APPLICATION,) = read_documents((GITOPS / "argocd" / "chart.yaml").read_text())
SOURCE, RELEASE = read_documents((GITOPS / "flux" / "chart.yaml").read_text())
VALUES: dict[str, Any] = RELEASE["spec"]["values"]


def test_both_install_the_same_release_of_this_version_from_the_chart_of_this_repository() -> None:
    argo, flux = APPLICATION["spec"], RELEASE["spec"]
    helm_source = argo["source"]["helm"]
    assert helm_source["valuesObject"] == VALUES
    assert helm_source["releaseName"] == flux["releaseName"] == RELEASE["metadata"]["name"]
    assert argo["destination"]["namespace"] == flux["targetNamespace"] == NAMESPACE
    assert flux["storageNamespace"] == NAMESPACE
    chart = flux["chart"]["spec"]
    assert (ROOT / argo["source"]["path"]).samefile(ROOT / chart["chart"])
    assert (ROOT / chart["chart"]).samefile(CHART)
    assert chart["sourceRef"] == {"kind": SOURCE["kind"], "name": SOURCE["metadata"]["name"]}
    assert argo["source"]["repoURL"] == SOURCE["spec"]["url"]
    tag = f"v{isoloss.__version__}"
    assert argo["source"]["targetRevision"] == SOURCE["spec"]["ref"]["tag"] == tag


@pytest.mark.cluster
def test_the_chart_takes_their_values_and_the_operator_reads_them() -> None:
    variables = environment(VALUES)
    assert variables["ISOLOSS_TRAINER_IMAGE"].startswith("registry.example.com/isoloss/trainer:")
    (prefixes,) = VALUES["storage"]["allowedPrefixes"].values()
    assert all(prefix in variables["ISOLOSS_ALLOWED_STORAGE"] for prefix in prefixes)
