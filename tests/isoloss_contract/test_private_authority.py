"""An S3 server whose certificate a CA of the site's own has signed, as docs/reference/operator.md has it."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import s3fs

from devcluster.pki import KeyFiles
from isoloss_contract.store import Patience, Store, StoreUnavailable

ONCE = Patience(attempts=1, connect_seconds=5, silence_seconds=5)
CONTENT = b"1"


class Server(http.server.BaseHTTPRequestHandler):
    """Has the same object everywhere."""

    def do_GET(self) -> None:
        """Send it."""
        self._send_head()
        self.wfile.write(CONTENT)

    def do_HEAD(self) -> None:
        """What there is to say about it."""
        self._send_head()

    def _send_head(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The certificate of the CA; the server is the endpoint."""
    keys = KeyFiles(tmp_path / "keys")
    keys.ensure()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.certificate, keys.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    yield keys.ca
    s3fs.S3FileSystem.clear_instance_cache()
    server.shutdown()
    server.server_close()


def test_aws_ca_bundle_names_the_authority_of_the_s3_server(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
        Store("s3://lab", ONCE).read("a")
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    assert Store("s3://lab", ONCE).read("a") == CONTENT


def test_corpora_are_read_by_the_same_variable(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer opens them by fsspec, without options of its own."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    filesystem, path = fsspec.core.url_to_fs("s3://lab/corpus.txt", use_listings_cache=False)
    assert filesystem.cat_file(path) == CONTENT
