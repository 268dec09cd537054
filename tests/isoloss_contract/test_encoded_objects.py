"""Objects of Cloud Storage that are stored compressed, which a reader would decompress before any limit applies."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import gcsfs
import pytest

from isoloss_contract.store import BadRecord, Store
from tests.isoloss_contract.conftest import SHORT

CONTENT = b"0123456789"


class CloudStorage(ThreadingHTTPServer):
    """One object, with the conditions that a read may have."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.facts = {"generation": "1", "metageneration": "1", "size": str(len(CONTENT))}
        self.asked: list[str] = []


class Answer(BaseHTTPRequestHandler):
    """Of facts, or of the object's content."""

    server: CloudStorage

    def do_GET(self) -> None:
        query = {name: each[0] for name, each in parse_qs(urlsplit(self.path).query).items()}
        facts = self.server.facts
        status, body = 200, json.dumps(facts).encode()
        if query.get("alt") == "media":
            body = CONTENT
            if "Range" in self.headers:
                first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
                status, body = 206, CONTENT[first : last + 1]
            for name in ("generation", "metageneration"):
                if query.get(f"if{name.capitalize()}Match", facts[name]) != facts[name]:
                    status, body = 412, b"{}"
        self.server.asked.append("content" if query.get("alt") == "media" else "facts")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorage]:
    with CloudStorage() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield server
        gcsfs.GCSFileSystem.clear_instance_cache()
        server.shutdown()


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
