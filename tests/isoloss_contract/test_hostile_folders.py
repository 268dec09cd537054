"""A file:// store on a volume where tenants may write what they like, and the operator must not follow."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from isoloss_contract.store import (
    BadRecord,
    NotFound,
    Patience,
    Store,
    StoreError,
    StoreUnavailable,
    WriteConflict,
)

RESULT = "points/a/result.json"
TOKEN = "the operator's own token"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A tenant's store with a point in it; beside it what only the operator may read."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/token").write_text(TOKEN)
    (tmp_path / "tenant/points/a").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def store(volume: Path) -> Store:
    return Store(f"file://{volume}/tenant", Patience(attempts=1))


def test_a_link_in_place_of_a_file_is_not_read_and_is_named(volume: Path, store: Store) -> None:
    (volume / "tenant" / RESULT).symlink_to(volume / "secrets/token")
    with pytest.raises(BadRecord, match=rf"{RESULT}: result\.json is a symbolic link"):
        store.read(RESULT)
    with pytest.raises(BadRecord, match="symbolic link"):
        store.read_versioned(RESULT)
    with pytest.raises(BadRecord, match="symbolic link"):
        next(store.parts(RESULT))


def test_a_link_in_place_of_a_folder_is_followed_by_nothing(volume: Path, store: Store) -> None:
    """Not by a read, a write, a list or a removal."""
    (volume / "secrets/result.json").write_text(TOKEN)
    (volume / "tenant/points/a").rmdir()
    (volume / "tenant/points/a").symlink_to(volume / "secrets")
    for call in (
        lambda: store.read(RESULT),
        lambda: store.write(RESULT, b"1"),
        lambda: store.write_if(RESULT, b"1", None),
        lambda: store.stamp(RESULT),
        lambda: store.names("points/a"),
        lambda: store.remove(RESULT),
    ):
        with pytest.raises(BadRecord, match="points/a is a symbolic link"):
            call()
    assert (volume / "secrets/result.json").read_text() == TOKEN
    assert sorted(os.listdir(volume / "secrets")) == ["result.json", "token"]


def test_a_write_replaces_a_link_and_not_what_it_leads_to(volume: Path, store: Store) -> None:
    (volume / "tenant" / RESULT).symlink_to(volume / "secrets/token")
    (volume / "tenant" / f"{RESULT}.partial").symlink_to(volume / "secrets/token")
    store.write(RESULT, b"1")
    assert (volume / "secrets/token").read_text() == TOKEN
    assert store.read(RESULT) == b"1"


def test_a_removal_removes_a_link_and_not_what_it_leads_to(volume: Path, store: Store) -> None:
    (volume / "tenant" / RESULT).symlink_to(volume / "secrets/token")
    (volume / "tenant/points/a/folder").symlink_to(volume / "secrets")
    store.remove(RESULT)
    store.remove("points/a")
    assert store.names("points") == []
    assert (volume / "secrets/token").read_text() == TOKEN


def test_a_link_in_place_of_a_lock_is_not_opened(volume: Path, store: Store) -> None:
    (volume / "tenant/points/a/.result.json.lock").symlink_to(volume / "secrets/token")
    with pytest.raises(StoreError, match=RESULT):
        store.write_if(RESULT, b"1", None)


def test_a_lock_that_a_tenant_holds_is_waited_for_no_longer_than_allowed(volume: Path) -> None:
    import fcntl

    lock = volume / "tenant/points/a/.result.json.lock"
    impatient = Store(f"file://{volume}/tenant", Patience(attempts=1, attempt_seconds=0.1))
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(
            StoreUnavailable, match=r"another process holds the lock \.result\.json\.lock"
        ):
            impatient.write_if(RESULT, b"1", None)
    impatient.write_if(RESULT, b"1", None)


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_unreadable_and_blocks_nobody(
    kind: str, volume: Path, store: Store
) -> None:
    path = volume / "tenant" / RESULT
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(BadRecord, match=rf"{RESULT}: not a file"):
        store.read(RESULT)
    with pytest.raises(BadRecord, match="not a file"):
        store.read_versioned(RESULT)
    store.remove(RESULT)
    with pytest.raises(NotFound):
        store.read(RESULT)


def test_a_file_in_place_of_a_folder_makes_what_is_below_it_unreadable(
    volume: Path, store: Store
) -> None:
    (volume / "tenant/points/a").rmdir()
    (volume / "tenant/points/a").write_text("")
    with pytest.raises(BadRecord, match="points/a is a file where a folder should be"):
        store.read(RESULT)


def test_links_are_followed_down_to_the_anchor_and_not_below(volume: Path) -> None:
    """Above it everything is the administrator's; between it and the store it is the tenant's."""
    (volume / "mount").symlink_to(volume)
    Store(f"file://{volume}/mount/tenant").write(RESULT, b"1")
    Store(f"file://{volume}/mount/tenant", anchor=f"file://{volume}/mount").read(RESULT)
    (volume / "other").symlink_to(volume / "tenant")
    linked = Store(f"file://{volume}/other", anchor=f"file://{volume}")
    with pytest.raises(BadRecord, match="other is a symbolic link"):
        linked.read(RESULT)


def test_a_path_never_leads_upwards(store: Store) -> None:
    with pytest.raises(BadRecord, match=r"'\.\.' are not allowed"):
        store.read("../secrets/token")


def test_an_interrupted_write_is_no_object(volume: Path, store: Store) -> None:
    (volume / "tenant/points/a/.result.json.0123456789abcdef.partial").write_text("half")
    store.write_if(RESULT, b"1", None)
    assert store.names("points/a") == ["result.json"]


def test_links_are_followed_where_the_reader_says_so(volume: Path) -> None:
    """A snapshot of the Hugging Face hub consists of links."""
    (volume / "tenant" / RESULT).symlink_to(volume / "secrets/token")
    reader = Store(f"file://{volume}/tenant", follow_links=True)
    assert reader.read(RESULT).decode() == TOKEN


def test_a_file_of_any_size_in_place_of_an_object_is_a_conflict_at_once(
    volume: Path, store: Store
) -> None:
    """A sparse file costs nobody any disk, and its reader an hour."""
    version = store.write_if("head.json", b"{}", None)
    os.truncate(volume / "tenant/head.json", 300 * 2**30)
    with pytest.raises(WriteConflict):
        store.write_if("head.json", b"{1}", version)


def test_a_write_that_is_refused_is_refused_in_the_same_words_each_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status that says why would change with each try."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def refused(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(".partial"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, *arguments, **options)

    opened = os.open
    for name, fault in (("fsync", full), ("open", refused)):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fault)
            message = []
            for _ in range(2):
                with pytest.raises(StoreUnavailable) as caught:
                    store.write(RESULT, b"1")
                message.append(str(caught.value))
        assert message[0] == message[1]
        assert "partial" not in message[0]
