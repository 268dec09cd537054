"""A ledger in the store: what it costs to change, and what can be read of another version."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from isoloss_contract import layout
from isoloss_contract.ledger import (
    Attempts,
    DerivedModel,
    Intent,
    IntentAction,
    Ledger,
    Placement,
    PointRecord,
    PointState,
    Spend,
)
from isoloss_contract.ledger_files import (
    LedgerWrite,
    StoredLedger,
    assemble,
    next_write,
    parse_head,
    read_ledger,
)
from isoloss_contract.store import BadRecord, NewerRecord, NotFound, Store

FOLDER = "sweeps/dense-u"


def record(number: int, **changes: object) -> PointRecord:
    plain = PointRecord(
        key=f"{number:032x}",
        name=f"small-b{number}",
        proxy="small",
        batch_size=8,
        learning_rate=1e-3,
        wanted_tokens=1000,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def ledger(points: int, **changes: object) -> Ledger:
    records = tuple(record(number) for number in range(points))
    plain = Ledger(sweep="dense", namespace="research", uid="u", points=records)
    return plain.replace(**changes)


def done(number: int) -> PointRecord:
    return record(
        number, state=PointState.SUCCEEDED, trained_for=1000, tokens=1000, flops=1e15, loss=3.25
    )


class Folder:
    """Segments and head as a store keeps them, counting the bytes written."""

    def __init__(self) -> None:
        self.segments: dict[str, bytes] = {}
        self.head = b""
        self.stored: StoredLedger | None = None
        self.bytes_written = 0

    def write(self, wanted: Ledger, epoch: int = 1) -> LedgerWrite:
        write = next_write(self.stored, wanted, epoch)
        self.segments |= write.segments
        self.head = write.stored.document
        self.bytes_written += len(self.head) + sum(map(len, write.segments.values()))
        for name in write.obsolete:
            del self.segments[name]
        self.stored = write.stored
        return write

    def read(self) -> StoredLedger:
        return assemble(parse_head(self.head, "head.json"), lambda name, _: self.segments[name])


def store_with(folder: Folder, path: Path) -> Store:
    store = Store(f"file://{path}")
    for name, content in folder.segments.items():
        store.write(layout.ledger_segment_in(FOLDER, name), content)
    store.write(layout.ledger_in(FOLDER), folder.head)
    return store


def test_whatever_happens_to_a_ledger_is_read_back_equal() -> None:
    """Points done, dropped, returned, reordered and forgotten, in random order."""
    chance = random.Random(1)
    folder, now = Folder(), ledger(40)
    for _ in range(200):
        points, former = list(now.points), list(now.former)
        match chance.randrange(5):
            case 0 | 1 if points:
                at = chance.randrange(len(points))
                points[at] = replace(points[at], tokens=chance.randrange(1000))
            case 2 if points:
                former.append(points.pop(chance.randrange(len(points))))
            case 3 if former:
                points.insert(0, former.pop())
            case _ if points:
                points.pop()
        now = now.replace(points=tuple(points), former=tuple(former))
        folder.write(now)
        assert folder.read().ledger == now
        assert len(folder.segments) == len(folder.stored.head.segments if folder.stored else ())
    assert len(folder.segments) < 10


def test_a_copy_with_other_points_knows_those_by_their_keys() -> None:
    before = ledger(2)
    assert len(before.by_key) == 2
    after = before.model_copy(update={"points": (done(1),)})
    assert after.by_key == {done(1).key: done(1)}
    assert before.replace(points=(done(1),)).by_key == after.by_key


def test_everything_in_a_ledger_is_read_back_equal() -> None:
    now = ledger(0).replace(
        former=(record(9, attempts=Attempts(ended=2, last_failure="Crashed")),),
        points=(
            record(0, intent=Intent(IntentAction.PAUSE, reason="BudgetExhausted", bound=1e18)),
            done(1),
        ),
        carried=Spend(1e18, 3600.0),
        versions=({"torch": "2.9.0"},),
    )
    folder = Folder()
    folder.write(now)
    assert folder.read().ledger == now


@pytest.mark.parametrize("many", [2_500, pytest.param(10_000, marks=pytest.mark.whole)])
def test_a_point_costs_about_the_same_bytes_in_a_ledger_of_a_hundred_and_of_thousands(
    many: int,
) -> None:
    """Finished in batches of a twenty-fifth of the sweep, as passes see them."""

    def bytes_per_point(points: int) -> float:
        folder, now = Folder(), ledger(points)
        folder.write(now)
        batch = points // 25
        for start in range(0, points, batch):
            finished = tuple(done(number) for number in range(start, start + batch))
            now = now.replace(
                points=(*now.points[:start], *finished, *now.points[start + batch :])
            )
            folder.write(now)
        return folder.bytes_written / points

    assert bytes_per_point(many) < 1.5 * bytes_per_point(100)


def test_one_changed_point_of_ten_thousand_writes_kilobytes() -> None:
    folder, now = Folder(), ledger(10_000)
    folder.write(now)
    before = folder.bytes_written
    folder.write(now.replace(points=(done(0), *now.points[1:])))
    assert folder.bytes_written - before < 8 * 1024


def test_the_digest_is_that_of_the_records_however_they_are_laid_out() -> None:
    folder, now = Folder(), ledger(20)
    folder.write(ledger(10))
    folder.write(now)
    at_once = Folder()
    at_once.write(now)
    assert folder.stored is not None
    assert at_once.stored is not None
    assert folder.stored.head.digest == at_once.stored.head.digest == now.digest
    assert now.digest != now.replace(points=(done(0), *now.points[1:])).digest


def test_a_segment_that_was_tampered_with_is_refused() -> None:
    folder = Folder()
    folder.write(ledger(3))
    name = next(iter(folder.segments))
    folder.segments[name] = folder.segments[name].replace(b"small-b2", b"small-b7")
    with pytest.raises(BadRecord, match="SHA-256 differs"):
        folder.read()


def test_a_head_without_one_of_its_segments_is_refused_by_the_digest() -> None:
    folder = Folder()
    folder.write(ledger(100))
    folder.write(ledger(100).replace(points=(done(0), *ledger(100).points[1:])))
    head = json.loads(folder.head)
    head["segments"].pop()
    folder.head = json.dumps(head).encode()
    with pytest.raises(BadRecord, match="do not have the digest"):
        folder.read()


def test_where_sizes_are_placed_is_kept_and_part_of_the_digest() -> None:
    placement = Placement("small", 1.2e-3, 96, "published:step-law", "a" * 32)
    folder, now = Folder(), ledger(3, placements=(placement,))
    folder.write(now)
    assert folder.read().ledger.placements == (placement,)
    assert now.digest != ledger(3).digest


def test_models_that_were_derived_are_kept_and_part_of_the_digest() -> None:
    model = DerivedModel("s3://models/target", 10**6, {"model_type": "llama", "rope_theta": 1e4})
    folder, now = Folder(), ledger(3, derived=(model,))
    folder.write(now)
    assert folder.read().ledger.derived == (model,)
    assert now.digest != ledger(3).digest


def test_an_unknown_field_is_refused() -> None:
    folder = Folder()
    folder.write(ledger(3))
    folder.head = json.dumps(json.loads(folder.head) | {"mood": "bright"}).encode()
    with pytest.raises(BadRecord, match="mood"):
        folder.read()


@pytest.mark.parametrize("revision", [2**53 + 1, 2**63 - 1])
def test_a_revision_that_nothing_could_follow_is_damage(revision: int) -> None:
    """Whoever may write to the store can write it there, and each write of the next one would fail."""
    folder = Folder()
    folder.write(ledger(3))
    folder.head = json.dumps(json.loads(folder.head) | {"revision": revision}).encode()
    with pytest.raises(BadRecord, match="revision"):
        folder.read()


def test_the_highest_revision_is_followed_by_itself() -> None:
    folder = Folder()
    folder.write(ledger(3))
    folder.head = json.dumps(json.loads(folder.head) | {"revision": 2**53}).encode()
    folder.stored = folder.read()
    folder.write(ledger(4))
    assert folder.read().ledger == ledger(4)


def test_a_newer_version_is_told_from_a_damaged_ledger() -> None:
    with pytest.raises(NewerRecord, match="ledger version 5; this one knows up to 4"):
        parse_head(b'{"ledger_version": 5, "points": "elsewhere"}', "head.json")


def test_no_ledger_at_all_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_ledger(Store(f"file://{tmp_path}"), FOLDER)


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    folder = Folder()
    folder.write(ledger(3))
    store = store_with(folder, tmp_path)
    name = next(iter(folder.segments))
    store.remove(layout.ledger_segment_in(FOLDER, name))
    with pytest.raises(BadRecord, match=name):
        read_ledger(store, FOLDER)


def test_a_dropped_point_keeps_its_cost() -> None:
    spent = replace(done(0), attempts=Attempts(ended=1, accelerator_seconds=60.0))
    now = ledger(1, former=(spent,), carried=Spend(1e15, 30.0))
    assert now.spent == Spend(2e15, 90.0)
