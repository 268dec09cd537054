"""Answers of 4xx from an S3 server: what they mean, and that they are given once."""

import secrets
from collections.abc import Callable

import pytest
from aiohttp import web

from isoloss_contract.store import (
    NotFound,
    Patience,
    Store,
    StoreRefused,
    StoreUnavailable,
    WriteConflict,
)
from tests.faults.injection import Fault, store_status
from tests.isoloss_contract.conftest import BUCKET
from tests.support.proxy import Call, Forward, Proxy

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


def test_what_is_denied_and_listed_is_denied_at_once(relay: Proxy, store: Store) -> None:
    """A HEAD has no words. What may be removed is listed first."""
    store.write("folder/here.json", b"x")
    relay.handler = DENIES_ALL_BUT_LISTS
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: store.read("folder/here.json"), "AccessDenied"),
        (lambda: store.stamp("folder/here.json"), "403"),
        (lambda: store.write("folder/here.json", b"x"), "AccessDenied"),
        (lambda: store.write_if("a.json", b"x", None), "AccessDenied"),
        (lambda: store.remove("folder"), "AccessDenied"),
    ]
    for call, words in calls:
        before = relay.requests
        with pytest.raises(StoreRefused, match=words):
            call()
        assert relay.requests - before <= 2, "a listing and a question"


def is_conditional(call: Call) -> bool:
    return bool({"If-Match", "If-None-Match"} & {*call.request.headers})


def is_bulk_deletion(call: Call) -> bool:
    return call.method == "POST" and "delete" in call.query


@pytest.mark.parametrize(
    ("status", "code"),
    [(501, "NotImplemented"), (400, "InvalidArgument"), (400, "NotImplemented")],
)
@pytest.mark.parametrize("version", [None, '"etag"'], ids=["a first write", "a later one"])
def test_a_store_without_conditional_writes_is_told_as_such_at_once(
    relay: Proxy, store: Store, status: int, code: str, version: str | None
) -> None:
    """It takes any other write, so that neither a quota nor a permission is to blame."""
    relay.handler = Fault(is_conditional, store_status(status, code))
    store.write("a.json", b"x")
    before = relay.requests
    with pytest.raises(StoreRefused, match=rf"{code}.*conditional writes \(If-Match, If-None-"):
        store.write_if("ledger", b"x", version)
    assert relay.requests - before == 1


@pytest.mark.parametrize(
    ("status", "code"), [(400, "EntityTooLarge"), (400, "ExpiredToken"), (403, "AccessDenied")]
)
def test_any_other_refusal_of_a_conditional_write_is_not_blamed_on_conditions(
    relay: Proxy, store: Store, status: int, code: str
) -> None:
    relay.handler = Fault(is_conditional, store_status(status, code))
    with pytest.raises(StoreRefused, match=code) as caught:
        store.write_if("ledger", b"x", None)
    assert "conditional writes" not in str(caught.value)


def test_an_object_that_cannot_be_made_where_nothing_is_is_said_to(
    relay: Proxy, store: Store
) -> None:
    """As versitygw 1.8.0 answers over a delete marker. A conflict with another writer stays one."""
    relay.handler = Fault(is_conditional, store_status(412, "PreconditionFailed"))
    with pytest.raises(StoreRefused, match=r"is not there, and the store refuses.*delete marker"):
        store.write_if("ledger", b"x", None)
    relay.handler = Fault(is_conditional, store_status(409, "ConditionalRequestConflict"))
    with pytest.raises(WriteConflict):
        store.write_if("ledger", b"x", None)
    store.write("ledger", b"y")
    relay.handler = Fault(is_conditional, store_status(412, "PreconditionFailed"))
    with pytest.raises(WriteConflict):
        store.write_if("ledger", b"x", None)


@pytest.mark.parametrize(
    ("status", "code"),
    [(501, "NotImplemented"), (400, "MissingContentMD5"), (405, "MethodNotAllowed")],
)
def test_a_store_that_deletes_one_object_at_a_time_is_asked_so(
    relay: Proxy, store: Store, status: int, code: str
) -> None:
    for name in ("folder/a", "folder/b/c", "folder-2/d"):
        store.write(name, b"x")
    refusals = Fault(is_bulk_deletion, store_status(status, code))
    relay.handler = refusals
    store.remove("folder")
    assert refusals.hits == 1
    assert store.names("") == ["folder-2"]


def test_an_object_or_a_folder_goes_and_nothing_beside_it(relay: Proxy, store: Store) -> None:
    for name in ("x/a", "x/b/c", "x.json", "xy/d", "z"):
        store.write(name, b"x")
    store.remove("x")
    assert sorted(store.names("")) == ["x.json", "xy", "z"]
    store.remove("z")
    store.remove("nothing")
    assert sorted(store.names("")) == ["x.json", "xy"]


def test_more_objects_go_than_one_request_may_name(relay: Proxy, store: Store) -> None:
    for number in range(1005):
        store.write(f"many/{number}", b"")
    store.remove("many")
    assert store.names("") == []


def reported(code: str, keys: int = 10) -> Fault:
    """A deletion of several objects that is answered with 200 and an error for some of them."""

    async def answer(call: Call, forward: Forward) -> web.StreamResponse:
        names = call.body.decode().split("<Key>")[1 : keys + 1]
        errors = "".join(
            f"<Error><Key>{name.partition('<')[0]}</Key><Code>{code}</Code><Message>No</Message></Error>"
            for name in names
        )
        body = f"<DeleteResult>{errors}</DeleteResult>"
        return web.Response(body=body.encode(), content_type="application/xml")

    return Fault(is_bulk_deletion, answer)


def test_a_deletion_that_is_denied_key_by_key_is_not_taken_for_done(
    relay: Proxy, store: Store
) -> None:
    for name in ("a", "b", "c"):
        store.write(f"folder/{name}", b"x")
    relay.handler = reported("AccessDenied", 2)
    with pytest.raises(StoreRefused, match=r"2 of 3 objects .*folder/a: AccessDenied"):
        store.remove("folder")


def test_a_deletion_that_failed_for_now_is_tried_again(relay: Proxy, store: Store) -> None:
    store.write("folder/a", b"x")
    slow = reported("InternalError")
    slow.times = 1
    relay.handler = slow
    store.remove("folder")
    assert store.names("") == []
    slow.times = None
    store.write("folder/a", b"x")
    with pytest.raises(StoreUnavailable, match="InternalError"):
        store.remove("folder")
