"""Answers of 4xx from an S3 server: what they mean, and that they are given once."""

from __future__ import annotations

import secrets

import pytest

from isoloss_contract.store import NotFound, Patience, Store, StoreRefused
from tests.faults.injection import Fault, store_status
from tests.isoloss_contract.conftest import BUCKET
from tests.support.proxy import Proxy

PATIENCE = Patience(attempts=4, longest_pause_seconds=0.1, silence_seconds=5)

pytestmark = pytest.mark.s3


@pytest.fixture
def store(relay: Proxy) -> Store:
    return Store(f"s3://{BUCKET}/{secrets.token_hex(4)}", PATIENCE)


DENIED = store_status(403, "AccessDenied")
DENIES_ALL = Fault(lambda _: True, DENIED)
DENIES_ALL_BUT_LISTS = Fault(lambda call: "list-type" not in call.query, DENIED)


def test_what_is_denied_and_not_listed_is_absent(relay: Proxy, store: Store) -> None:
    """As older versions of Ceph answer for what is not there."""
    store.write("here.json", b"x")
    relay.handler = DENIES_ALL_BUT_LISTS
    with pytest.raises(NotFound):
        store.read("not-here.json")
    with pytest.raises(NotFound):
        store.stamp("not-here.json")
    assert not store.exists("here.jso")


def test_what_is_denied_and_listed_is_denied(relay: Proxy, store: Store) -> None:
    store.write("here.json", b"x")
    relay.handler = DENIES_ALL_BUT_LISTS
    with pytest.raises(StoreRefused, match="AccessDenied"):
        store.read("here.json")
    with pytest.raises(StoreRefused, match="403"):  # a HEAD has no words
        store.stamp("here.json")


def test_where_listing_is_denied_too_the_message_names_the_right(
    relay: Proxy, store: Store
) -> None:
    relay.handler = DENIES_ALL
    with pytest.raises(StoreRefused, match=r"s3:ListBucket.* is missing"):
        store.read("not-here.json")


def test_what_is_refused_is_asked_once(relay: Proxy, store: Store) -> None:
    store.write("warm.json", b"x")
    before = relay.requests
    with pytest.raises(StoreRefused, match="KeyTooLong"):
        store.read("x" * 1100)
    assert relay.requests - before == 1


def test_a_denied_write_says_so(relay: Proxy, store: Store) -> None:
    relay.handler = DENIES_ALL
    with pytest.raises(StoreRefused, match="AccessDenied"):
        store.write("a.json", b"x")
    with pytest.raises(StoreRefused, match="AccessDenied"):
        store.write_if("a.json", b"x", None)
