"""Stores of every kind: a folder, a real S3 server, and Google Cloud Storage where it is built."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import s3fs

from devcluster.object_storage import ObjectStorage
from isoloss_contract.store import Patience, Store
from tests.support.gcs_server import gcs_server, needs_gcs_server
from tests.support.proxy import Proxy

BUCKET = "lab"
KINDS = [
    pytest.param("file"),
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("gs", marks=needs_gcs_server),
]
SHORT = Patience(attempts=2, longest_pause_seconds=0.1, silence_seconds=5)

OpenStore = Callable[[], Store]


@pytest.fixture(scope="module")
def gcs_address() -> Iterator[str]:
    with gcs_server(BUCKET) as address:
        yield address


@pytest.fixture
def s3_environment(
    object_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStorage]:
    s3fs.S3FileSystem.clear_instance_cache()
    for name, value in object_storage.environment().items():
        monkeypatch.setenv(name, value)
    object_storage.create_bucket(BUCKET)
    yield object_storage
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def relay(s3_environment: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy through which S3 is reached."""
    relay = Proxy(s3_environment.url).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", relay.url)
    yield relay
    relay.close()


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same fresh folder again and again, as separate processes would."""
    folder = secrets.token_hex(4)
    if request.param == "file":
        return lambda: Store(f"file://{tmp_path}/{folder}", SHORT)
    request.getfixturevalue({"s3": "s3_environment", "gs": "gcs_address"}[request.param])
    return lambda: Store(f"{request.param}://{BUCKET}/{folder}", SHORT)
