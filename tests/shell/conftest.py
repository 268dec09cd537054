"""A whole operator against a real API server, real object storage and a node of its own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster.control_plane import ControlPlane
from devcluster.object_storage import ObjectStorage
from tests.support.cluster import NodeFactory
from tests.support.crds import install_crds
from tests.support.operator_process import OperatorProcess, User, apply_account

SECRET = "store"


@dataclass(frozen=True)
class Place:
    """A bucket of the test's own, as S3 URI and as the folder behind it."""

    storage: ObjectStorage
    bucket: str

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def folder(self) -> Path:
        return self.storage.buckets / self.bucket


@pytest.fixture
def place(object_storage: ObjectStorage) -> Place:
    bucket = f"test-{secrets.token_hex(6)}"
    object_storage.create_bucket(bucket)
    return Place(object_storage, bucket)


@pytest.fixture
def user(api_client: Any, namespace: str, object_storage: ObjectStorage) -> User:
    """A user in a fresh namespace with CRDs, the operator's account and the store's secret."""
    install_crds(api_client)
    apply_account(api_client, namespace)
    user = User(api_client, namespace)
    user.create_secret(SECRET, object_storage.environment())
    return user


@pytest.fixture
def operator(
    control_plane: ControlPlane, user: User, place: Place, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """An operator for the namespace, not started yet; it may use the test's bucket only."""
    environment = {
        **place.storage.environment(),
        "ISOLOSS_ALLOWED_STORAGE": json.dumps({user.namespace: [place.uri]}),
    }
    process = OperatorProcess(control_plane, user.namespace, tmp_path, environment)
    yield process
    process.end()


@pytest.fixture
def node(make_node: NodeFactory) -> Any:
    """A node with room for many planted pods."""
    return make_node(cpu="64")
