"""Strict reading and careful writing, on a real folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import count
from pathlib import Path

import pytest

from isoloss_contract import layout
from isoloss_contract.reading import ABSENT, Newer, Unanswered, Unreadable
from isoloss_contract.records import TrajectoryRow
from isoloss_contract.store import (
    NotFound,
    Store,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from isoloss_contract.trajectories import write_finished
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.store.storage import Storage
from tests.support.builders import manifest, points, progress
from tests.support.chance import Clock

LAWS = "sweeps/x/laws.json"


@pytest.fixture
def storage() -> Storage:
    return Storage(readers=4)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


def test_a_checkpoints_stamp_changes_with_its_files_and_with_nothing_else(
    uri: str, tmp_path: Path
) -> None:
    clock = Clock()
    storage = Storage(readers=4, clock=clock)
    for name in ("config.json", "model-1.safetensors", "model-2.safetensors"):
        (tmp_path / name).write_text(name)
    first = storage.checkpoint_stamp(uri)
    assert isinstance(first, str)
    (tmp_path / "README.md").write_text("not read")
    clock.now = 61.0
    assert storage.checkpoint_stamp(uri) == first
    (tmp_path / "new").write_text("other weights")
    (tmp_path / "new").rename(tmp_path / "model-2.safetensors")
    assert storage.checkpoint_stamp(uri) == first, "a minute old at most"
    clock.now = 122.0
    second = storage.checkpoint_stamp(uri)
    assert second != first
    (tmp_path / "model-3.safetensors").write_text("one more")
    clock.now = 183.0
    assert storage.checkpoint_stamp(uri) not in (first, second)


def test_courses_have_the_losses_of_the_weights_that_are_asked_for(
    storage: Storage, uri: str
) -> None:
    """Of the trajectory with the digest that is named; other losses are left out."""
    rows = (
        TrajectoryRow(step=0, tokens=0, loss=11.0, averaged_loss=11.0),
        TrajectoryRow(step=1, tokens=100, loss=5.0, averaged_loss=6.0),
        TrajectoryRow(step=2, tokens=200, loss=None, averaged_loss=5.5),
    )
    content = "".join(f"{row.model_dump_json()}\n" for row in rows).encode()
    sha256 = hashlib.sha256(content).hexdigest()
    write_finished(Store(uri), "a" * 32, content)
    wanted = {"a" * 32: sha256, "b" * 32: sha256}
    averaged = storage.courses(uri, wanted, raw=False)
    assert averaged == {"a" * 32: ((100, 6.0), (200, 5.5)), "b" * 32: ABSENT}
    assert storage.courses(uri, wanted, raw=True)["a" * 32] == ((100, 5.0),)
    write_finished(Store(uri), "a" * 32, content * 2**14)
    many = hashlib.sha256(content * 2**14).hexdigest()
    too_large = storage.courses(uri, {"a" * 32: many}, raw=True)
    assert isinstance(too_large["a" * 32], Unreadable)


def test_a_checkpoint_whose_files_may_not_be_listed_has_no_stamp(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Store, __: str) -> list[str]:
        raise StoreRefused("s3://models/a: AccessDenied: s3:ListBucket")

    monkeypatch.setattr(Store, "names", refuse)
    assert Storage(readers=1).checkpoint_stamp(uri) == ABSENT


def test_a_checkpoint_whose_files_may_not_be_listed_any_more_has_no_other_stamp(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    storage = Storage(readers=1, clock=clock)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text(name)
    before = storage.checkpoint_stamp(uri)

    def refuse(_: Store, __: str) -> str:
        raise StoreRefused("s3://models/a: AccessDenied: s3:GetObject")

    with monkeypatch.context() as refused:
        refused.setattr(Store, "stamp", refuse)
        clock.now = 61.0
        for _ in range(2):
            found = storage.checkpoint_stamp(uri)
            assert isinstance(found, Unanswered)
            assert "s3:GetObject; the files could be listed before" in found.message
    assert storage.checkpoint_stamp(uri) == before


@pytest.mark.parametrize("left", [(), ("config.json",), ("model.safetensors",)])
def test_what_is_no_checkpoint_any_more_has_no_stamp(
    uri: str, tmp_path: Path, left: tuple[str, ...]
) -> None:
    """It would name another evaluation, which can never end."""
    for name in left:
        (tmp_path / name).write_text(name)
    found = Storage(readers=1).checkpoint_stamp(uri)
    assert isinstance(found, Unreadable)
    assert uri in found.message


def test_what_is_not_there_is_absent(storage: Storage, uri: str) -> None:
    assert storage.manifest(uri, "manifest.json") == ABSENT
    assert storage.model_config(uri) == ABSENT
    assert storage.evaluation(uri, "evaluation.json") == ABSENT
    assert storage.results(uri, ["a" * 32]) == {}
    assert storage.fit_outcome(uri, LAWS) == ABSENT
    assert storage.point_names(uri) == frozenset()


def test_a_point_that_has_reported_and_has_no_result_is_among_the_names(
    storage: Storage, uri: str
) -> None:
    """What an attempt that is gone has cost is asked for by these names alone."""
    begun = points()[0]
    content = progress(begun, 1000).model_dump_json().encode()
    Store(uri).write(layout.point_progress(begun.key), content)
    assert storage.point_names(uri) == {begun.key}


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "\x00\x01"])
def test_rubbish_is_unreadable_and_names_the_file(
    storage: Storage, uri: str, tmp_path: Path, content: str
) -> None:
    (tmp_path / "manifest.json").write_text(content)
    found = storage.manifest(uri, "manifest.json")
    assert isinstance(found, Unreadable)
    assert "manifest.json" in found.message


def test_setting_aside_moves_and_may_be_done_twice(
    storage: Storage, uri: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text("x")
    request = Quarantine("bad.json", "unreadable")
    storage.quarantine(uri, request)
    storage.quarantine(uri, request)
    assert not (tmp_path / "bad.json").exists()
    assert (tmp_path / "bad.json.unreadable").read_text() == "x"


def test_an_object_that_a_store_does_not_remove_is_kept_once(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often that is tried; and what was kept before stays beside it."""
    uri = f"file://{tmp_path}"

    def refused(*_: object) -> None:
        raise StoreRefused("AccessDenied")

    (tmp_path / "bad.json").write_text("x")
    request = Quarantine("bad.json", "unreadable")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "remove", refused)
        for _ in range(3):
            with pytest.raises(StoreRefused):
                storage.quarantine(uri, request)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad.json", "bad.json.unreadable"]
    (tmp_path / "bad.json").write_text("y")
    storage.quarantine(uri, request)
    (other,) = tmp_path.glob("bad.json.unreadable-*")
    assert other.read_text() == "y"
    assert (tmp_path / "bad.json.unreadable").read_text() == "x"
    assert not (tmp_path / "bad.json").exists()


def test_a_link_of_a_tenant_leads_the_operator_nowhere(storage: Storage, tmp_path: Path) -> None:
    """Set aside, the operator's own token would be where the tenant can read it."""
    uri, path = f"file://{tmp_path}/tenant", "points/a/result.json"
    (tmp_path / "token").write_text("secret")
    (tmp_path / "tenant/points/a").mkdir(parents=True)
    (tmp_path / "tenant" / path).symlink_to(tmp_path / "token")
    found = storage.results(uri, ["a"])["a"]
    assert isinstance(found, Unreadable)
    assert "symbolic link" in found.message
    storage.quarantine(uri, Quarantine(path, "unreadable"))
    assert "symbolic link" in (tmp_path / "tenant" / f"{path}.unreadable").read_text()
    assert not (tmp_path / "tenant" / path).is_symlink()
    assert (tmp_path / "token").read_text() == "secret"


def test_a_linked_folder_is_removed_and_nothing_behind_it(
    storage: Storage, tmp_path: Path
) -> None:
    uri, path = f"file://{tmp_path}/tenant", "points/a/result.json"
    (tmp_path / "other").mkdir()
    (tmp_path / "other/result.json").write_text("another tenant's")
    (tmp_path / "tenant/points").mkdir(parents=True)
    (tmp_path / "tenant/points/a").symlink_to(tmp_path / "other")
    assert isinstance(storage.results(uri, ["a"])["a"], Unreadable)
    storage.quarantine(uri, Quarantine(path, "unreadable"))
    assert storage.results(uri, ["a"]) == {}
    assert [each.name for each in (tmp_path / "other").iterdir()] == ["result.json"]


def test_no_link_below_an_allowed_prefix_is_followed(tmp_path: Path) -> None:
    """A store's own folder is the tenant's too."""
    (tmp_path / "other").mkdir()
    (tmp_path / "tenant").symlink_to(tmp_path / "other")
    careful = Storage(prefixes=[f"file://{tmp_path}", f"file://{tmp_path}/tenant"])
    with pytest.raises(StoreError, match="tenant is a symbolic link"):
        careful.store(f"file://{tmp_path}//tenant").write("ledger.json", b"x")
    assert list((tmp_path / "other").iterdir()) == []


def test_the_whole_file_system_may_be_allowed(tmp_path: Path) -> None:
    """A cluster of one tenant, in which file:/// is the prefix."""
    storage = Storage(prefixes=["file:///"])
    uri = f"file://{tmp_path}"
    assert storage.anchor(uri) == "file://"
    storage.store(uri).write("a.json", b"x")
    assert (tmp_path / "a.json").read_bytes() == b"x"


def test_a_manifest_is_missed_a_minute_after_it_was_removed(uri: str, tmp_path: Path) -> None:
    """With the corpus, as the guide says one may: it is prepared again, if anything is left to train."""
    clock = Clock()
    storage, path = Storage(readers=4, clock=clock), layout.data_manifest("k")
    Store(uri).write_record(path, manifest())
    assert storage.manifest(uri, path) == manifest()
    shutil.rmtree(tmp_path / "data")
    clock.now = 59.0
    assert storage.manifest(uri, path) == manifest()
    clock.now = 61.0
    assert storage.manifest(uri, path) == ABSENT
    other = manifest(digest="f" * 64)
    Store(uri).write_record(path, other)
    assert storage.manifest(uri, path) == other


def test_a_manifest_outlives_an_outage_of_the_store(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    storage, path = Storage(readers=4, clock=clock), layout.data_manifest("k")
    Store(uri).write_record(path, manifest())
    storage.manifest(uri, path)

    def unavailable(*_: object, **__: object) -> str:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(Store, "stamp", unavailable)
    clock.now = 61.0
    assert storage.manifest(uri, path) == manifest()


def test_progress_that_is_not_given_out_is_no_lack_of_progress(
    storage: Storage, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, absent, withheld, others = points()[:4]
    Store(uri).write_record(layout.point_progress(here.key), progress(here, 100))
    Store(uri).write_record(layout.point_progress(others.key), progress(here, 100))
    read = Store.read

    def refuse(store: Store, path: str, *, max_bytes: int) -> bytes:
        if path == layout.point_progress(withheld.key):
            raise StoreRefused("s3://lab/a: AccessDenied: s3:GetObject")
        return read(store, path, max_bytes=max_bytes)

    monkeypatch.setattr(Store, "read", refuse)
    found = storage.progress(uri, [here.key, absent.key, withheld.key, others.key])
    assert found == {
        here.key: progress(here, 100),
        absent.key: ABSENT,
        withheld.key: Unanswered("s3://lab/a: AccessDenied: s3:GetObject"),
        others.key: ABSENT,
    }


def test_in_a_store_too_slow_for_all_progress_each_point_has_its_turn(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, seen = [f"{number:032x}" for number in range(20)], set[str]()
    for _ in range(100):
        answers = count()

        def read(_: Store, path: str, *, max_bytes: int, answers: count[int] = answers) -> bytes:
            if next(answers) >= 5:
                raise StoreUnavailable("not asked: no time is left")
            raise NotFound(path)

        monkeypatch.setattr(Store, "read", read)
        found = Storage(readers=1).progress(uri, keys)
        seen |= {key for key, answer in found.items() if answer == ABSENT}
    assert seen == set(keys)


@pytest.mark.parametrize("name", ["laws.json", "fit.json"])
def test_laws_and_fits_of_a_newer_version_are_newer_and_not_unreadable(
    storage: Storage, uri: str, tmp_path: Path, name: str
) -> None:
    """What is unreadable is made again over it."""
    laws = b'{"format": "isoloss.dev/laws", "version": 99, "laws": {"kept": "elsewhere"}}'
    fit = {
        "version": 99 if name == "fit.json" else 1,
        "inputs": "a",
        "ledger_sha256": "b",
        "points": 9,
        "laws_sha256": hashlib.sha256(laws).hexdigest(),
        "report_written": True,
        "error": "",
    }
    Store(uri).write(LAWS, laws)
    Store(uri).write("sweeps/x/fit.json", json.dumps(fit).encode())
    found = storage.fit_outcome(uri, LAWS)
    assert isinstance(found, Newer)
    assert (
        f"{name}: written by a newer isoloss (version 99; this one knows up to " in found.message
    )
