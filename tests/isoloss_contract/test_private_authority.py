"""An S3 server whose certificate a CA of the site's own has signed, as docs/reference/operator.md has it."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import s3fs

from devcluster.pki import KeyFiles
from isoloss_contract.store import Patience, Store, StoreUnavailable
from tests.support.http_server import serving

ONCE = Patience(attempts=1, connect_seconds=5, silence_seconds=5)
CONTENT = b"1"


HEADERS = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The certificate of the CA; the endpoint is a server that has the same object everywhere."""
    keys = KeyFiles(tmp_path / "keys")
    keys.ensure()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.certificate, keys.key)
    s3fs.S3FileSystem.clear_instance_cache()
    with serving(lambda _: (200, HEADERS, CONTENT), context) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
        yield keys.ca
        s3fs.S3FileSystem.clear_instance_cache()


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
