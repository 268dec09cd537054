"""Parts of an object, in every kind of store."""

import base64
import zlib
from pathlib import Path

import pytest
from aiohttp import web

import isoloss_contract.store.store as store_module
from isoloss_contract.store import BadRecord, NotFound, Store, StoreUnavailable
from isoloss_contract.store.folder import FolderBackend
from tests.isoloss_contract.conftest import BUCKET, SHORT, OpenStore
from tests.support.proxy import Call, Forward, Proxy


def test_a_range_is_those_bytes_and_no_others(open_store: OpenStore) -> None:
    store = open_store()
    content = bytes(range(256)) * 8
    store.write("folder/x.bin", content)
    for start, size in ((0, 1), (5, 300), (len(content) - 7, 7), (0, len(content))):
        assert store.read_range("folder/x.bin", start, size) == content[start : start + size]


@pytest.mark.parametrize("start", [90, 100, 5000], ids=["partly", "at the end", "far behind it"])
def test_a_range_behind_the_end_is_damage_that_names_the_object(
    open_store: OpenStore, start: int
) -> None:
    store = open_store()
    store.write("x.bin", bytes(100))
    with pytest.raises(BadRecord, match=r"x\.bin: ends before byte"):
        store.read_range("x.bin", start, 20)


def test_a_range_of_nothing_is_not_found(open_store: OpenStore) -> None:
    with pytest.raises(NotFound):
        open_store().read_range("absent.bin", 0, 4)


@pytest.mark.parametrize("size", [0, 7, 8, 9, 24])
def test_an_object_is_read_in_parts(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(store_module, "PART_BYTES", 8)
    store, content = open_store(), bytes(range(size))
    store.write("x.bin", content)
    assert b"".join(store.parts("x.bin")) == content
    with pytest.raises(NotFound):
        next(store.parts("absent.bin"))


def test_a_part_that_was_not_answered_is_asked_for_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read_range, asked = Store(tmp_path.as_uri(), SHORT), FolderBackend.read_range, []

    def broken(self: FolderBackend, path: str, start: int, size: int) -> bytes:
        asked.append(start)
        if len(asked) == 2:
            raise ConnectionResetError(104, "reset by peer")
        return read_range(self, path, start, size)

    monkeypatch.setattr(store_module, "PART_BYTES", 8)
    monkeypatch.setattr(FolderBackend, "read_range", broken)
    store.write("x.bin", bytes(range(20)))
    assert b"".join(store.parts("x.bin")) == bytes(range(20))
    assert asked == [0, 8, 8, 16, 20]


def test_parts_of_two_objects_are_never_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a checkpoint that is uploaded anew while it is fetched."""
    monkeypatch.setattr(store_module, "PART_BYTES", 8)
    store = Store(tmp_path.as_uri(), SHORT)
    store.write("x.bin", bytes(20))
    parts = store.parts("x.bin")
    next(parts)
    store.write("x.bin", bytes(range(20)))
    with pytest.raises(StoreUnavailable, match=r"x\.bin: was replaced while it was read"):
        list(parts)


@pytest.mark.s3
def test_a_range_is_not_held_against_the_checksum_of_the_whole_object(relay: Proxy) -> None:
    """Some servers send it with a part; a whole object is held against it all the same."""
    content = bytes(range(200))
    checksum = base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()

    async def with_checksum(call: Call, forward: Forward) -> web.StreamResponse:
        if call.method != "GET" or "x.bin" not in call.path:
            return await forward(call)
        asked = call.request.headers.get("Range", "bytes=0-199").removeprefix("bytes=")
        start, end = (int(each) for each in asked.split("-"))
        status = 206 if "Range" in call.request.headers else 200
        headers = {"x-amz-checksum-crc32": checksum, "ETag": '"e"'}
        return web.Response(status=status, body=sent[start : end + 1], headers=headers)

    store = Store(f"s3://{BUCKET}/checksums", SHORT)
    relay.handler, sent = with_checksum, content
    assert store.read_range("x.bin", 10, 20) == content[10:30]
    assert store.read("x.bin") == content
    sent = content[:-1] + b"!"
    with pytest.raises(BadRecord, match="damaged"):
        store.read("x.bin")
