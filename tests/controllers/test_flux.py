"""Sweeps and predictions under Flux's own kustomize-controller, with the sample's Kustomizations."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from devcluster.control_plane import ControlPlane
from devcluster.process_node import ProcessNode
from isoloss.yaml_text import to_yaml
from tests.controllers import sample
from tests.controllers.controller import Controller, Json, manifests_of
from tests.controllers.repository import Repository
from tests.gitops.health import GITOPS
from tests.isoloss_operator.conftest import Place
from tests.support.cluster import wait_until
from tests.support.crds import apply, install
from tests.support.operator_process import OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

FLUX = "kustomize-controller"
GROUP, VERSION, PLURAL = "kustomize.toolkit.fluxcd.io", "v1", "kustomizations"
SWEEP, PREDICTION, VALIDATION, TRAINING = (f"research-{part}" for part in sample.PARTS)
ANSWER = "research-answer"


def kustomize_controller(
    plane: ControlPlane, folder: Path, namespace: str, *arguments: str
) -> Controller:
    """The process, as if it ran in this namespace."""
    usual = [
        "--metrics-addr=127.0.0.1:0",
        "--health-addr=127.0.0.1:0",
        "--enable-leader-election=false",
        "--requeue-dependency=2s",
    ]
    environment = {"RUNTIME_NAMESPACE": namespace}
    return Controller(FLUX, plane, folder, [*usual, *arguments], environment)


class Flux:
    """kustomize-controller, the repository it applies, and the sample's Kustomizations."""

    def __init__(self, plane: ControlPlane, user: User, folder: Path) -> None:
        self.user = user
        install(user.api_client, manifests_of(FLUX, "config/crd/bases"))
        self.repository = Repository(user.api_client, user.namespace, "pretraining")
        of_this_test = f"--watch-label-selector=isoloss-test={user.namespace}"
        self.controller = kustomize_controller(plane, folder, user.namespace, of_this_test)

    def apply_kustomizations(self) -> None:
        """The sample's, for this test's namespace and in a hurry."""
        text = (GITOPS / "flux" / "kustomizations.yaml").read_text()
        text = text.replace("namespace: research}", f"namespace: {self.user.namespace}}}")
        for body in yaml.safe_load_all(text):
            body["metadata"] |= {
                "namespace": self.user.namespace,
                "labels": {"isoloss-test": self.user.namespace},
            }
            body["spec"] |= {"retryInterval": "3s"}
            if body["metadata"]["name"] == ANSWER:
                body["spec"]["timeout"] = "5s"
            apply(self.user.api_client, PLURAL, body)

    def kustomization(self, name: str) -> Json:
        """GET one."""
        api = client.CustomObjectsApi(self.user.api_client)
        found: Any = api.get_namespaced_custom_object(
            GROUP, VERSION, self.user.namespace, PLURAL, name
        )
        return dict(found)

    def wait_for(self, name: str, status: str, words: str = "", seconds: float = 240) -> None:
        """Wait until its Ready has that status, and these words in its message."""

        def holds() -> bool:
            found = self.ready(name)
            return found.get("status") == status and words in found.get("message", "")

        try:
            wait_until(holds, f"{name} to be Ready={status} {words}", seconds)
        except pytest.fail.Exception:
            print(self.kustomization(name).get("status"), self.user.sweep("dense").get("status"))
            raise

    def ready(self, name: str) -> Json:
        """Its condition Ready."""
        conditions = self.kustomization(name).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == "Ready"), {})

    def warnings(self) -> dict[str, set[str]]:
        """What Flux has raised an alarm about, by Kustomization."""
        listed = client.CoreV1Api(self.user.api_client).list_namespaced_event(self.user.namespace)
        found: dict[str, set[str]] = {}
        for event in listed.items:
            about = event.involved_object
            if about.kind == "Kustomization" and event.type == "Warning":
                found.setdefault(about.name, set()).add(event.message)
        return found

    def reconcile(self, name: str) -> None:
        """As `flux reconcile`: ask for a pass, and wait for its end."""
        asked = str(time.monotonic_ns())
        body = {"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": asked}}}
        client.CustomObjectsApi(self.user.api_client).patch_namespaced_custom_object(
            GROUP, VERSION, self.user.namespace, PLURAL, name, body
        )
        wait_until(
            lambda: (
                self.kustomization(name).get("status", {}).get("lastHandledReconcileAt") == asked
            ),
            f"Flux to reconcile {name}",
            120,
        )


@pytest.fixture
def flux(control_plane: ControlPlane, user: User, tmp_path: Path) -> Iterator[Flux]:
    running = Flux(control_plane, user, tmp_path / "flux")
    yield running
    running.controller.end()
    running.repository.close()


def test_a_repository_goes_from_sweep_to_training_and_shows_no_drift(
    flux: Flux, operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """In the sample's order; ten further passes of Flux change neither object nor manager.

    Meanwhile nothing that the sample's Alert lets through: what is accepted is Ready while it trains.
    """
    operator.start()
    # Suspended at first, so that the answer is late for sure.
    flux.repository.commit(sample.research(user, place, suspend=True))
    flux.apply_kustomizations()
    flux.wait_for(SWEEP, "True")
    flux.wait_for(PREDICTION, "True")
    flux.wait_for(VALIDATION, "True")  # it waits for the answer, too
    wait_until(lambda: flux.warnings(), "Flux to look for the answer in vain")
    assert not [job for job in user.jobs() if job.metadata.name == "dense-8b-continued-1"]
    flux.repository.commit(sample.research(user, place))
    flux.wait_for(ANSWER, "True")
    flux.wait_for(TRAINING, "True")
    assert not [text for text in _all(flux.warnings()) if not _is_excluded(text)]
    assert set(flux.warnings()) == {ANSWER}
    job = client.BatchV1Api(user.api_client).read_namespaced_job(
        "dense-8b-continued-1", user.namespace
    )
    assert job.spec is not None
    wait_until(lambda: sample.succeeded(user, "dense-8b-continued-1"), "the training Job's end")
    user.wait_for(lambda: user.prediction("dense-8b"), "Validated")
    for read in (lambda: user.sweep("dense"), lambda: user.sweep(sample.PROBES)):
        user.wait_for(read, "Reconciling", "False")

    before = [
        sample.without_time(user.sweep("dense")),
        sample.without_time(user.prediction("dense-8b")),
    ]
    for _ in range(10):
        flux.reconcile(SWEEP)
        flux.reconcile(PREDICTION)
    after = [
        sample.without_time(user.sweep("dense")),
        sample.without_time(user.prediction("dense-8b")),
    ]
    assert after == before


def _all(warnings: dict[str, set[str]]) -> set[str]:
    return {text for texts in warnings.values() for text in texts}


def _is_excluded(message: str) -> bool:
    """Whether the sample's Alert says nothing of it."""
    (alert,) = yaml.safe_load_all((GITOPS / "flux" / "alert.yaml").read_text())
    return any(re.search(each, message) for each in alert["spec"]["exclusionList"])


def test_a_commit_that_is_refused_is_mended_by_the_next(
    flux: Flux, operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    """What the API server refuses never replaces what was there; what only the operator can refuse stalls."""
    operator.start()
    good = sample.research(user, place)
    flux.repository.commit(sample.with_unquoted_rate(good))
    flux.apply_kustomizations()
    flux.wait_for(SWEEP, "False", "learningRates")
    flux.repository.commit(sample.with_forbidden_checkpoint(good))
    flux.wait_for(SWEEP, "True")
    flux.wait_for(PREDICTION, "False", "Failed")
    assert "StorageNotAllowed" in str(user.prediction("dense-8b")["status"]["conditions"])
    flux.repository.commit(good)
    flux.wait_for(PREDICTION, "True")


def test_flux_takes_back_an_edit_by_hand_resumes_by_commit_and_prunes(
    flux: Flux, operator: OperatorProcess, user: User, node: ProcessNode, place: Place
) -> None:
    operator.start()
    flux.repository.commit(sample.research(user, place, suspend=True))
    flux.apply_kustomizations()
    wait_until(lambda: "dense" in user.sweeps(), "Flux to apply the sweep", 120)
    user.wait_for(lambda: user.sweep("dense"), "Suspended", "True")
    flux.wait_for(SWEEP, "True")  # a suspended sweep holds no later commit up
    flux.repository.commit(sample.research(user, place, parallelism=2))
    user.wait_for(lambda: user.sweep("dense"), "Suspended", "False")

    sample.edit_by_hand(user, 5)
    flux.reconcile(SWEEP)
    assert user.sweep("dense")["spec"]["parallelism"] == 2

    files = sample.research(user, place, parallelism=2)
    empty = to_yaml({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"})
    files["research/sweep/kustomization.yaml"] = empty
    del files[sample.FILES["sweep"]]
    flux.repository.commit(files)
    wait_until(lambda: "dense" not in user.sweeps(), "the sweep to be pruned", 120)
    wait_until(lambda: not [j for j in user.jobs() if sample.of_sweep(j)], "its Jobs to go", 120)
