"""A whole operator against a real API server, real object storage and a node of its own."""

import json
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from prometheus_client.parser import text_string_to_metric_families

from devcluster.control_plane import ControlPlane
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import ProcessNode
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.ledger_files import read_ledger
from isoloss_contract.store import Store
from isoloss_operator.cluster.client import Cluster
from isoloss_operator.cluster.rbac import NAME
from tests.support.cluster import NODE_LABEL, NODE_SELECTOR, NodeFactory
from tests.support.crds import install_crds
from tests.support.operator_process import (
    STORE_SECRET,
    OperatorProcess,
    User,
    apply_account,
    env_template,
    sweep_manifest,
)
from tests.support.published_configs import TOY_CHECKPOINT
from tests.support.traces import Traces

Json = dict[str, Any]
SMALL_GRID = {"batchSizes": [4, 8], "learningRates": ["2e-3", "4e-3"]}
SMALL_POINTS = 8


@dataclass(frozen=True)
class Place:
    """A bucket of the test's own, as S3 URI and as the folder behind it."""

    storage: ObjectStorage
    bucket: str

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/sweep"

    @property
    def folder(self) -> Path:
        return self.storage.buckets / self.bucket / "sweep"

    @property
    def traces(self) -> Traces:
        return Traces(self.folder / "traces")

    @property
    def trace_uri(self) -> str:
        return f"{self.uri}/traces"

    def ledger(self, sweep: dict[str, Any]) -> Ledger:
        """The ledger of a sweep as stored."""
        metadata = sweep["metadata"]
        store = Store(f"file://{self.folder}")
        return read_ledger(store, layout.sweep_folder(metadata["name"], metadata["uid"]))


def write_toy_checkpoint(place: Place) -> str:
    """A checkpoint in the test's bucket, with an initial loss of 2.6; its URI."""
    folder = place.folder / "models" / "loss-2.6"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TOY_CHECKPOINT))
    (folder / "model.safetensors").write_text("weights")
    return f"{place.uri}/models/loss-2.6"


def new_place(storage: ObjectStorage) -> Place:
    bucket = f"test-{secrets.token_hex(6)}"
    storage.create_bucket(bucket)
    return Place(storage, bucket)


def sweep(place: Place, seconds: float = 0.02, failures: Any = (), **spec: Any) -> Json:
    """A sweep that leaves traces; of 8 points unless a grid is given."""
    template = env_template(
        SYNTHETIC_LOG=place.trace_uri,
        SYNTHETIC_SECONDS=str(seconds),
        SYNTHETIC_FAILURES=json.dumps(failures),
    )
    values = {"grid": SMALL_GRID, "podTemplate": template, **spec}
    return sweep_manifest("dense", place.uri, **values)


def judging_sweep(place: Place, name: str, prediction: str, uri: str, tokens: int) -> Json:
    """A sweep that continues a checkpoint around the answer of a prediction."""
    near = {
        "name": "near",
        "checkpoint": {"uri": uri},
        "tokens": tokens,
        "grid": {"around": {"prediction": prediction, "factor": "2"}},
    }
    manifest = sweep(place, proxies=[near])
    manifest["metadata"]["name"] = name
    del manifest["spec"]["grid"], manifest["spec"]["design"]
    return manifest


def get(operator: OperatorProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(operator.url() + path, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics(operator: OperatorProcess) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(get(operator, "/metrics")[1]):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def finished(user: User) -> Json:
    """The sweep once every point has its outcome."""
    return user.wait_for(lambda: user.sweep("dense"), "Progressing", "False", "Finished")


@pytest.fixture
def place(object_storage: ObjectStorage) -> Place:
    return new_place(object_storage)


@pytest.fixture
def user(api_client: Any, namespace: str, object_storage: ObjectStorage) -> User:
    """A user in a fresh namespace with CRDs, the operator's account and the store's secret."""
    install_crds(api_client)
    apply_account(api_client, namespace)
    user = User(api_client, namespace)
    user.create_secret(STORE_SECRET, object_storage.environment())
    return user


@pytest.fixture
def operator(
    control_plane: ControlPlane, user: User, place: Place, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """An operator for the namespace, not started yet; it may use the test's bucket only."""
    environment = {
        **place.storage.environment(),
        "ISOLOSS_ALLOWED_STORAGE": json.dumps({user.namespace: [place.uri, "s3://models"]}),
    }
    process = OperatorProcess(control_plane, [user.namespace], tmp_path, environment)
    yield process
    process.end()
    message = [line["message"] for line in process.lines()] if process.log.exists() else []
    assert not [each for each in message if re.match(r"(report|page) of \S+ failed", each)]


@pytest.fixture
def cluster(control_plane: ControlPlane, user: User) -> Cluster:
    """The API server with the rights of the operator's service account."""
    kubeconfig = control_plane.kubeconfig_for_service_account(user.namespace, NAME)
    return Cluster(config.new_client_from_config(config_file=str(kubeconfig)))


@pytest.fixture
def node(make_node: NodeFactory) -> ProcessNode:
    """A node with room for many synthetic pods."""
    return make_node(cpu="64")


@pytest.fixture
def second_namespace(api_client: Any, user: User, object_storage: ObjectStorage) -> Iterator[User]:
    """Another user's namespace, whose pods run on the same node."""
    core = client.CoreV1Api(api_client)
    name = f"{user.namespace}-b"
    selector = {NODE_SELECTOR: f"{NODE_LABEL}={user.namespace}"}
    body: Any = {"metadata": {"name": name, "annotations": selector}}
    core.create_namespace(body)
    other = User(api_client, name)
    other.create_secret(STORE_SECRET, object_storage.environment())
    yield other
    core.delete_namespace(name)
