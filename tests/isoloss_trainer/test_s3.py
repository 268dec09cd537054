"""The same on a real S3 server: prepare, train, stop, resume, evaluate, and a server outage."""

import base64
import zlib
from pathlib import Path

import pytest
import s3fs
import torch
from aiohttp import web

from devcluster.object_storage import ObjectStorage
from isoloss_contract import layout
from isoloss_contract.records import DomainSource, EvaluationResult, PointResult
from isoloss_contract.store import Store
from isoloss_trainer.checkpoint import read_tensors, write_tensors
from isoloss_trainer.corpus import find_files, read_documents
from isoloss_trainer.evaluate import evaluate
from isoloss_trainer.termination import Interruption
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import (
    LLAMA,
    evaluate_task,
    quiet,
)
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.other_stores import prepared_on, trained_there_and_here
from tests.isoloss_trainer.test_evaluate import save
from tests.support.proxy import Call, Forward, Proxy

pytestmark = pytest.mark.s3


@pytest.fixture
def bucket(
    own_storage: ObjectStorage, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectStorage:
    """A server with the corpus in it, and the environment that a pod would have."""
    # s3fs keeps clients by their arguments; the endpoint of another test's server is not one.
    s3fs.S3FileSystem.clear_instance_cache()
    for name, value in own_storage.environment().items():
        monkeypatch.setenv(name, value)
    own_storage.create_bucket("lab")
    store = Store("s3://lab/corpus")
    for path in corpus.rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(corpus)), path.read_bytes())
    return own_storage


def test_a_point_on_s3_is_the_point_on_a_file_system(
    bucket: ObjectStorage, prepared: Prepared, tmp_path: Path
) -> None:
    assert bucket.is_running()
    manifest = prepared_on("s3://lab", tmp_path)
    assert manifest.digest == prepared.manifest.digest
    task, remote, local = trained_there_and_here(manifest, "s3://lab", prepared, tmp_path)
    assert remote == local
    result = Store("s3://lab/sweep").read_record(layout.point_result(task.point.key), PointResult)
    assert result.attempts >= 2


@pytest.mark.parametrize("size", [2**24 + 1, 2**25 + 1], ids=["whole", "in parts"])
def test_a_large_file_of_a_checkpoint_is_stored_as_it_is(bucket: ObjectStorage, size: int) -> None:
    """Its content is in memory that is mapped, which is no bytes object."""
    store = Store("s3://lab/checkpoint")
    tensor = torch.arange(size // 4, dtype=torch.float32)
    index = write_tensors(store.write, {"weights.one": tensor}, World(), None)
    assert index is not None
    found = {"weights.one": torch.empty_like(tensor)}
    read_tensors(store, "", index, found, World())
    assert torch.equal(found["weights.one"], tensor)


def test_a_checkpoint_on_s3_is_evaluated(
    bucket: ObjectStorage, prepared: Prepared, corpus: Path, tmp_path: Path
) -> None:
    assert bucket.is_running()
    manifest = prepared_on("s3://lab", tmp_path)
    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer", max_shard_size="20KB")
    for path in folder.iterdir():
        Store("s3://lab/model").write(path.name, path.read_bytes())
    task = evaluate_task(manifest, "s3://lab/sweep", "s3://lab/model")
    evaluate(task, tmp_path, Interruption(), quiet())
    result = Store("s3://lab/sweep").read_record(
        layout.evaluation_result(task.config.key), EvaluationResult
    )
    assert result.loss == prepared.evaluated(folder, tmp_path).loss
    assert result.same_tokenizer


def test_a_corpus_on_a_server_that_sends_checksums_of_whole_objects_with_ranges_is_read(
    bucket: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was "unavailable" for good."""
    source = DomainSource(name="prose", uri="s3://lab/corpus/prose.jsonl", text_field="text")
    filesystem, files = find_files(source)
    expected = list(read_documents(filesystem, files[0], "text"))

    async def with_checksum(call: Call, forward: Forward) -> web.StreamResponse:
        asked = call.request.headers.get("Range", "")
        if call.method != "GET" or not asked:
            return await forward(call)
        start, end = (int(each) for each in asked.removeprefix("bytes=").split("-"))
        part = content[start : end + 1]
        headers = {"x-amz-checksum-crc32": checksum, "ETag": '"e"'}
        return web.Response(status=206, body=part, headers=headers)

    content = (bucket.buckets / "lab" / "corpus" / "prose.jsonl").read_bytes()
    checksum = base64.b64encode(zlib.crc32(content + b"!").to_bytes(4, "big")).decode()
    relay = Proxy(bucket.url).start()
    try:
        relay.handler = with_checksum
        monkeypatch.setenv("AWS_ENDPOINT_URL", relay.url)
        s3fs.S3FileSystem.clear_instance_cache()
        filesystem, files = find_files(source)
        assert list(read_documents(filesystem, files[0], "text")) == expected
    finally:
        relay.close()
        s3fs.S3FileSystem.clear_instance_cache()
