"""The same on Google Cloud Storage, as fake-gcs-server has it: prepare, train, stop, resume, evaluate.

Skipped where the server is not built: `make test-gs` builds it, which takes two minutes.
"""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import gcsfs
import pytest

from devcluster.build import TOOLS
from isoloss import layout
from isoloss.contract import DataManifest
from isoloss.store import NotFound, Store
from isoloss_trainer.evaluate import evaluate
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.prepare import prepare
from isoloss_trainer.termination import Interrupted
from isoloss_trainer.train import train
from tests.trainer.builders import (
    LLAMA,
    StopAfter,
    evaluate_task,
    prepare_task,
    quiet,
    train_task,
    uri,
)
from tests.trainer.conftest import Prepared
from tests.trainer.test_evaluate import save

SERVER = TOOLS["fake-gcs-server"].path

pytestmark = pytest.mark.skipif(not SERVER.exists(), reason="make test-gs builds the server")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server with the bucket `lab`, and the environment that leads to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    host, port = address.split(":")
    command = [SERVER, "-scheme", "http", "-host", host, "-port", port, "-backend", "memory"]
    command += ["-public-host", address, "-external-url", f"http://{address}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(f"http://{address}/_internal/healthcheck")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{address}")
        gcsfs.GCSFileSystem.clear_instance_cache()
        gcsfs.GCSFileSystem(token="anon", project="lab").mkdir("lab")
        yield
    finally:
        server.terminate()
        server.wait()
        gcsfs.GCSFileSystem.clear_instance_cache()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the server does not answer")


def copy(folder: Path, store: Store) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(folder)), path.read_bytes())


@pytest.mark.usefixtures("bucket")
def test_the_store_says_what_is_there_and_what_is_not() -> None:
    store = Store("gs://lab/folder")
    store.write("a/b.json", b"{}")
    assert (store.read("a/b.json"), store.names(""), store.names("a")) == (
        b"{}",
        ["a"],
        ["b.json"],
    )
    assert not store.exists("a/c.json")
    with pytest.raises(NotFound, match="gs://lab/folder/a/c"):
        store.read("a/c.json")
    store.remove("a")
    assert store.names("") == []


@pytest.mark.usefixtures("bucket")
def test_a_point_and_a_checkpoint_are_what_they_are_on_a_file_system(
    corpus: Path, prepared: Prepared, tmp_path: Path
) -> None:
    copy(corpus, Store("gs://lab/corpus"))
    preparation = prepare_task("gs://lab/corpus", "gs://lab/sweep")
    prepare(preparation, tmp_path, Interruption(), quiet())
    store = Store("gs://lab/sweep")
    manifest = store.read_record(layout.data_manifest(preparation.config.key), DataManifest)
    assert manifest.digest == prepared.manifest.digest

    task = train_task(manifest, "gs://lab/sweep")
    for step in (3, 5):
        with pytest.raises(Interrupted):
            train(task, tmp_path, StopAfter(step), quiet())
    train(task, tmp_path, Interruption(), quiet())
    local = train_task(prepared.manifest, prepared.uri)
    train(local, tmp_path, Interruption(), quiet())
    paths = layout.point_trajectory(task.point.key), layout.point_trajectory(local.point.key)
    assert store.read(paths[0]) == Store(prepared.uri).read(paths[1])

    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer", max_shard_size="20KB")
    copy(folder, Store("gs://lab/model"))
    there = evaluate_task(manifest, "gs://lab/sweep", "gs://lab/model")
    here = evaluate_task(prepared.manifest, prepared.uri, uri(folder))
    answers = [evaluate(task, tmp_path, Interruption(), quiet()) for task in (there, here)]
    assert answers[0] == answers[1]
