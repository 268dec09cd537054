"""Reading with a version and writing only over that version, on every kind of store."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from devcluster.object_storage import ObjectStorage
from isoloss_contract.store import (
    BadRecord,
    NotFound,
    Store,
    StoreUnavailable,
    WriteConflict,
)
from tests.faults.injection import Fault, unanswered
from tests.isoloss_contract.conftest import BUCKET, SHORT, OpenStore
from tests.support.proxy import Proxy, pass_on

HEAD = "sweeps/a/head.json"
WRITERS = 8


def test_an_object_is_made_only_where_nothing_is(open_store: OpenStore) -> None:
    store = open_store()
    version = store.write_if(HEAD, b"first", None)
    assert store.read_versioned(HEAD) == (b"first", version)
    with pytest.raises(WriteConflict, match=HEAD):
        open_store().write_if(HEAD, b"second", None)
    assert store.read(HEAD) == b"first"


def test_an_object_is_replaced_only_in_the_version_that_was_read(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    old = store.write_if(HEAD, b"first", None)
    new = other.write_if(HEAD, b"second", old)
    assert new != old
    with pytest.raises(WriteConflict, match=HEAD):
        store.write_if(HEAD, b"third", old)
    content, version = store.read_versioned(HEAD)
    assert (content, version) == (b"second", new)
    store.write_if(HEAD, b"third", version)
    assert other.read(HEAD) == b"third"


@pytest.mark.parametrize("gone", [True, False])
def test_an_object_that_is_gone_or_was_written_without_a_condition_is_not_replaced(
    open_store: OpenStore, *, gone: bool
) -> None:
    store = open_store()
    version = store.write_if(HEAD, b"first", None)
    if gone:
        store.remove(HEAD)
    else:
        store.write(HEAD, b"by another")
    with pytest.raises(WriteConflict, match=HEAD):
        store.write_if(HEAD, b"second", version)
    assert store.exists(HEAD) is not gone


def test_of_many_writers_with_one_version_one_wins(open_store: OpenStore) -> None:
    version: str | None = None
    for turn in range(5):
        start = threading.Barrier(WRITERS)
        stores = [open_store() for _ in range(WRITERS)]

        def write(
            writer: int,
            turn: int = turn,
            version: str | None = version,
            start: threading.Barrier = start,
            stores: list[Store] = stores,
        ) -> str | None:
            start.wait()
            try:
                return stores[writer].write_if(HEAD, f"{turn} {writer}".encode(), version)
            except WriteConflict:
                return None

        with ThreadPoolExecutor(WRITERS) as pool:
            versions = list(pool.map(write, range(WRITERS)))
        (winner,) = [writer for writer, written in enumerate(versions) if written]
        version = versions[winner]
        assert open_store().read_versioned(HEAD) == (f"{turn} {winner}".encode(), version)


def test_a_read_is_bounded_and_knows_absence(open_store: OpenStore) -> None:
    store = open_store()
    store.write(HEAD, b"x" * 1001)
    for read in (store.read, store.read_versioned):
        with pytest.raises(BadRecord, match="larger than 1000 bytes"):
            read(HEAD, max_bytes=1000)
        with pytest.raises(NotFound, match=r"sweeps/a/other\.json: not found"):
            read("sweeps/a/other.json")
    assert len(store.read_versioned(HEAD, max_bytes=1001)[0]) == 1001
    store.write(HEAD, b"")
    assert store.read_versioned(HEAD, max_bytes=0)[0] == b""


def test_a_stamp_changes_with_every_replacement(open_store: OpenStore) -> None:
    store = open_store()
    store.write(HEAD, b"first")
    first = store.stamp(HEAD)
    assert store.stamp(HEAD) == first
    store.write(HEAD, b"other")
    assert store.stamp(HEAD) != first
    with pytest.raises(NotFound):
        store.stamp("sweeps/a/other.json")


def test_names_and_removal_are_the_same_everywhere(open_store: OpenStore) -> None:
    store = open_store()
    for path in ("points/a/config.json", "points/a/result.json", "points/b/result.json"):
        store.write_if(path, b"1", None)
    assert (store.names("points"), store.names("points/a")) == (
        ["a", "b"],
        ["config.json", "result.json"],
    )
    assert store.names("nothing") == []
    assert [*store.parts("points/a/config.json")] == [b"1"]
    store.remove("points/a")
    store.remove("points/a")
    assert store.names("points") == ["b"]


def lost_answers(relay: Proxy, times: int) -> Fault:
    """So many requests arrive, but their connections end in place of the answers."""
    return Fault(lambda _: True, unanswered(relay), times=times)


@pytest.mark.s3
def test_a_write_whose_answer_was_lost_is_not_a_conflict(relay: Proxy) -> None:
    """The second try finds the object changed, by the first."""
    path = "lost/head.json"
    store = Store(f"s3://{BUCKET}", SHORT)
    store.remove(path)
    relay.handler = lost_answers(relay, 1)
    version = store.write_if(path, b"first", None)
    assert store.read_versioned(path) == (b"first", version)
    relay.handler = lost_answers(relay, 1)
    version = store.write_if(path, b"second", version)
    assert store.read_versioned(path) == (b"second", version)


@pytest.mark.s3
def test_while_answers_are_lost_the_outcome_is_unknown_and_reading_again_tells(
    relay: Proxy,
) -> None:
    path = "lost/other.json"
    store = Store(f"s3://{BUCKET}", SHORT)
    store.remove(path)
    relay.handler = lost_answers(relay, 100)
    with pytest.raises(StoreUnavailable, match=path):
        store.write_if(path, b"first", None)
    relay.handler = pass_on
    content, version = store.read_versioned(path)
    assert content == b"first"
    store.write_if(path, b"second", version)


@pytest.mark.s3
@pytest.mark.usefixtures("s3_environment")
def test_a_missing_bucket_is_no_conflict_and_not_an_absence() -> None:
    store = Store("s3://no-such-bucket/a", SHORT)
    for call in (
        lambda: store.write_if(HEAD, b"1", None),
        lambda: store.write_if(HEAD, b"1", "abc"),
        lambda: store.read_versioned(HEAD),
        lambda: store.names("points"),
    ):
        with pytest.raises(StoreUnavailable, match="bucket"):
            call()


@pytest.mark.s3
def test_an_object_that_was_damaged_where_it_lies_is_unreadable_and_not_unanswered(
    s3_environment: ObjectStorage,
) -> None:
    """S3 keeps a checksum, and so does the server here."""
    store = Store(f"s3://{BUCKET}", SHORT)
    store.write("damaged/a.json", b"{}")
    (s3_environment.buckets / BUCKET / "damaged/a.json").write_bytes(b"[]")
    with pytest.raises(BadRecord, match=r"damaged/a\.json: damaged: .*checksum"):
        store.read("damaged/a.json")
