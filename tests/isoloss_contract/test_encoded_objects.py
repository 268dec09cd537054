"""Objects of Cloud Storage that are stored compressed, which a reader would decompress before any limit applies."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import gcsfs
import pytest

from isoloss_contract.store import BadRecord, Store
from tests.isoloss_contract.conftest import SHORT
from tests.support.http_server import Answer, serving

CONTENT = b"0123456789"


class CloudStorage:
    """One object, with the conditions that a read may have."""

    def __init__(self) -> None:
        self.facts = {"generation": "1", "metageneration": "1", "size": str(len(CONTENT))}
        self.asked: list[str] = []

    def answer(self, request: BaseHTTPRequestHandler) -> Answer:
        """Of facts, or of the object's content."""
        query = {name: each[0] for name, each in parse_qs(urlsplit(request.path).query).items()}
        if query.get("alt") != "media":
            self.asked.append("facts")
            return 200, {}, json.dumps(self.facts).encode()
        self.asked.append("content")
        for name in ("generation", "metageneration"):
            if query.get(f"if{name.capitalize()}Match", self.facts[name]) != self.facts[name]:
                return 412, {}, b"{}"
        if "Range" not in request.headers:
            return 200, {}, CONTENT
        first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        return 206, {}, CONTENT[first : last + 1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorage]:
    storage = CloudStorage()
    with serving(storage.answer) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield storage
        gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.fixture
def store(server: CloudStorage) -> Store:
    return Store("gs://lab/folder", SHORT)


def test_an_encoded_object_is_refused_before_it_is_read(
    server: CloudStorage, store: Store
) -> None:
    server.facts["contentEncoding"] = "gzip"
    with pytest.raises(BadRecord, match=r"folder/a\.json: is stored with Content-Encoding gzip"):
        store.read("a.json")
    with pytest.raises(BadRecord, match="Content-Encoding gzip"):
        store.read_range("a.json", 0, 4)
    with pytest.raises(BadRecord, match="Content-Encoding gzip"):
        next(store.parts("a.json"))
    assert "content" not in server.asked


def test_parts_of_an_object_cost_one_request_each(server: CloudStorage, store: Store) -> None:
    assert [store.read_range("a.bin", start, 2) for start in (0, 2, 8)] == [b"01", b"23", b"89"]
    assert server.asked == ["facts", *["content"] * 3]
    server.facts["generation"] = "2"
    assert store.read_range("a.bin", 0, 2) == b"01"


def test_an_object_that_is_declared_encoded_later_is_refused(
    server: CloudStorage, store: Store
) -> None:
    """Its generation stays what it was."""
    assert store.read("a.bin") == CONTENT
    assert store.read_range("a.bin", 0, 2) == b"01"
    server.facts |= {"contentEncoding": "gzip", "metageneration": "2"}
    with pytest.raises(BadRecord, match="Content-Encoding gzip"):
        store.read_range("a.bin", 0, 2)
    assert server.asked[-2:] == ["content", "facts"]
