"""A real S3 server, which restarts on the same port with the same objects."""

import socket
from pathlib import Path

import pytest
import s3fs

from devcluster.object_storage import ObjectStorage

pytestmark = pytest.mark.s3


def files_of(storage: ObjectStorage) -> s3fs.S3FileSystem:
    environment = storage.environment()
    return s3fs.S3FileSystem(
        key=environment["AWS_ACCESS_KEY_ID"],
        secret=environment["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        client_kwargs={"region_name": environment["AWS_REGION"]},
        config_kwargs={"retries": {"max_attempts": 1}, "connect_timeout": 2},
        skip_instance_cache=True,
        use_listings_cache=False,
    )


def test_wrong_credentials_are_refused(object_storage: ObjectStorage) -> None:
    files = s3fs.S3FileSystem(
        key="nobody", secret="nothing", endpoint_url=object_storage.url, skip_instance_cache=True
    )
    with pytest.raises((PermissionError, OSError)):
        files.ls("")


def test_a_stopped_server_refuses_and_a_started_one_has_everything(
    own_storage: ObjectStorage,
) -> None:
    own_storage.create_bucket("kept")
    url = own_storage.url
    files_of(own_storage).pipe_file("kept/x", b"x")
    own_storage.stop()
    assert not own_storage.is_running()
    with pytest.raises(Exception, match=r"connect|Connect"):
        files_of(own_storage).cat_file("kept/x")
    own_storage.start()
    assert own_storage.url == url
    assert files_of(own_storage).cat_file("kept/x") == b"x"


def test_a_server_for_others_listens_on_the_address_that_it_was_given(tmp_path: Path) -> None:
    storage = ObjectStorage(tmp_path / "s3", "127.0.0.2")
    storage.start()
    try:
        storage.create_bucket("elsewhere")
        assert storage.url.startswith("http://127.0.0.2:")
        files_of(storage).pipe_file("elsewhere/x", b"x")
        port = storage.url.rpartition(":")[2]
        with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
            probe.connect(("127.0.0.1", int(port)))
    finally:
        storage.stop()
