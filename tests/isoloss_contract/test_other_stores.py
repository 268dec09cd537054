"""What servers of others do with what isoloss asks of a store: the table of docs/reference/support.md, row by row.

`make test-stores` installs them into the folder named by ISOLOSS_STORES; without it there is nothing to ask.
"""

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import s3fs
from botocore.exceptions import BotoCoreError, ClientError

from devcluster.object_storage import ObjectStorage
from devcluster.ports import free_ports
from isoloss_contract.store import BadRecord, Store, StoreError, WriteConflict
from tests.isoloss_contract.conftest import BUCKET, SHORT
from tests.support.cluster import wait_until
from tests.support.gcs_server import gcs_server

PROGRAMS = Path(os.environ.get("ISOLOSS_STORES", "/nonexistent"))
pytestmark = pytest.mark.skipif(not PROGRAMS.exists(), reason="make test-stores installs them")
TABLE = Path(__file__).parents[2] / "docs/reference/support.md"
ODD = ("a b", "a+b", "ü%2F", "x&y;z", "'(1)'")
LARGE = 2**25
"""Bytes from which on a write goes in parts."""
COMMANDS: dict[str, Callable[[str, Path], Sequence[str | Path]]] = {
    "moto": lambda port, _: [PROGRAMS / "moto/bin/moto_server", "-H", "127.0.0.1", "-p", port],
    "gofakes3": lambda port, _: [
        *(PROGRAMS / "gofakes3", "-backend", "memory"),
        *("-host", f"127.0.0.1:{port}"),
    ],
    "rclone": lambda port, folder: [
        *(PROGRAMS / "rclone", "serve", "s3", "--addr", f"127.0.0.1:{port}"),
        *("--auth-key", "key,secret", folder),
    ],
}


@contextmanager
def running(name: str, folder: Path) -> Iterator[str]:
    """A server that keeps its objects in `folder`, or in memory: the URI of a bucket, with the environment of clients."""
    with pytest.MonkeyPatch.context() as patch:
        s3fs.S3FileSystem.clear_instance_cache()
        if name == "fake-gcs-server":
            with gcs_server(BUCKET):
                yield f"gs://{BUCKET}"
            return
        if name == "versitygw":
            storage = ObjectStorage(folder)
            storage.start()
            environment, stop = storage.environment(), storage.stop
        else:
            (port,) = free_ports(1)
            server = subprocess.Popen(COMMANDS[name](str(port), folder), stderr=subprocess.DEVNULL)
            keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
            address = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1"}
            environment, stop = keys | address, server.kill
        for variable, value in (environment | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
            patch.setenv(variable, value)
        try:
            wait_until(lambda: bucket_is_made(), f"{name} to answer")
            yield f"s3://{BUCKET}"
        finally:
            stop()
            s3fs.S3FileSystem.clear_instance_cache()


def client() -> Any:
    return botocore.session.get_session().create_client("s3")


def bucket_is_made() -> bool:
    try:
        client().create_bucket(Bucket=BUCKET)
    except (BotoCoreError, ClientError):
        return False
    return True


def holds(store: Store, path: str, stale: str | None) -> str:
    """Whether a write under a condition that does not hold is refused, and of eight at once under one that does seven."""
    try:
        store.write_if(path, b"late", stale)
    except WriteConflict:
        winners = {winners_of_eight(store, path, new=stale is None) for _ in range(5)}
        return "yes" if winners == {1} else "not at once"
    except StoreError:
        return "refused"
    return "no"


def winners_of_eight(store: Store, path: str, *, new: bool) -> int:
    """How many of eight writers at once are told that they wrote a new object, or the next version of one."""
    version = None if new else store.read_versioned(path)[1]
    path = f"{path}-{secrets.token_hex(4)}" if new else path

    def wins(_: int) -> bool:
        try:  # an ETag may be of the content: that of the version before would be the same
            return bool(store.write_if(path, secrets.token_bytes(8), version))
        except WriteConflict:
            return False

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(wins, range(8)))


def kept_of_parts() -> str:
    """Which conditions CompleteMultipartUpload keeps."""
    s3, key = client(), "parts/conditions"
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"there")
    kept = []
    for name, condition in (("If-None-Match", "*"), ("If-Match", '"0"')):
        upload = s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        asked = {"Bucket": BUCKET, "Key": key, "UploadId": upload}
        part = s3.upload_part(**asked, PartNumber=1, Body=b"late")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        try:
            given = {name.replace("-", ""): condition}
            s3.complete_multipart_upload(**asked, MultipartUpload=parts, **given)
        except ClientError:
            kept.append(f"`{name}`")
    return "both" if len(kept) == 2 else "".join(kept) or "neither"


def answers(check: Callable[[], object]) -> str:
    try:
        return "yes" if check() else "no"
    except StoreError:
        return "no"


def damage_is_reported(store: Store, folder: Path, size: int) -> bool | None:
    """None: no file of the folder has the object's bytes."""
    content, path = secrets.token_bytes(16) * (size // 16), f"damaged/{size}"
    store.write(path, content)
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size == size and file.read_bytes() == content:
            file.write_bytes(b"\0" * 8 + content[8:])
            try:
                store.read(path, max_bytes=size)
            except BadRecord:
                return True
            return False
    return None


def row(uri: str, folder: Path) -> list[str]:
    """What the server does, in the words of the table."""
    store = Store(f"{uri}/{secrets.token_hex(4)}", SHORT)
    old = store.write_if("head", b"first", None)
    store.write_if("head", b"second", old)
    large = secrets.token_bytes(16) * (LARGE // 16)
    store.write("large", large)
    for name in ODD:
        store.write(f"odd/{name}/{name}", name.encode())
    listed = answers(lambda: store.names("odd") == sorted(ODD))
    store.remove("odd")
    reported = [damage_is_reported(store, folder, size) for size in (64, LARGE)]
    return [
        holds(store, "head", None),
        holds(store, "head", old),
        kept_of_parts() if uri.startswith("s3") else "–",
        answers(lambda: store.read("large", max_bytes=LARGE) == large),
        answers(lambda: store.read_range("large", 7, 99) == large[7:106]),
        answers(lambda: not store.names("odd")),
        listed,
        "–"
        if None in reported
        else {2: "yes", 1: "not of parts", 0: "no"}[sum(map(bool, reported))],
    ]


@pytest.mark.parametrize("name", ["versitygw", "moto", "gofakes3", "rclone", "fake-gcs-server"])
def test_a_server_does_what_its_row_says(name: str, tmp_path: Path) -> None:
    rows = (line.strip("|\n").split("|") for line in TABLE.read_text().splitlines())
    message = {cells[0].split(" ")[0]: "|".join(cells[1:]) for cells in rows if len(cells) == 9}
    with running(name, tmp_path) as uri:
        assert "|".join(row(uri, tmp_path)) == message.get(name)
