"""Answers of 4xx from an S3 server: what they mean, and that they are given once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
import s3fs

from devcluster.object_storage import ObjectStorage
from isoloss_contract.store import NotFound, Patience, Store, StoreRefused
from tests.support.faulty_proxy import FaultyProxy

BUCKET = "lab"
PATIENCE = Patience(attempts=4, longest_pause_seconds=0.1, silence_seconds=5)

pytestmark = pytest.mark.s3


@pytest.fixture
def relay(s3_environment: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    relay = FaultyProxy(s3_environment.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", relay.url)
    s3fs.S3FileSystem.clear_instance_cache()
    yield relay
    relay.close()


@pytest.fixture
def store(relay: FaultyProxy) -> Store:
    return Store(f"s3://{BUCKET}/{secrets.token_hex(4)}", PATIENCE)


def is_listing(request: bytes) -> bool:
    return b"list-type=2" in request.partition(b"\r\n")[0]


def test_what_is_denied_and_not_listed_is_absent(relay: FaultyProxy, store: Store) -> None:
    """As older versions of Ceph answer for what is not there."""
    store.write("here.json", b"x")
    relay.forbids = lambda request: not is_listing(request)
    with pytest.raises(NotFound):
        store.read("not-here.json")
    with pytest.raises(NotFound):
        store.stamp("not-here.json")
    assert not store.exists("here.jso")


def test_what_is_denied_and_listed_is_denied(relay: FaultyProxy, store: Store) -> None:
    store.write("here.json", b"x")
    relay.forbids = lambda request: not is_listing(request)
    with pytest.raises(StoreRefused, match="403"):
        store.read("here.json")
    with pytest.raises(StoreRefused, match="403"):
        store.stamp("here.json")


def test_where_listing_is_denied_too_the_message_names_the_right(
    relay: FaultyProxy, store: Store
) -> None:
    relay.forbids = lambda request: True
    with pytest.raises(StoreRefused, match=r"s3:ListBucket.* is missing"):
        store.read("not-here.json")


def test_what_is_refused_is_asked_once(relay: FaultyProxy, store: Store) -> None:
    store.write("warm.json", b"x")
    before = relay.requests
    with pytest.raises(StoreRefused, match="KeyTooLong"):
        store.read("x" * 1100)
    assert relay.requests - before == 1


def test_a_denied_write_says_so(relay: FaultyProxy, store: Store) -> None:
    relay.forbids = lambda request: True
    with pytest.raises(StoreRefused, match="403"):
        store.write("a.json", b"x")
    with pytest.raises(StoreRefused, match="403"):
        store.write_if("a.json", b"x", None)
