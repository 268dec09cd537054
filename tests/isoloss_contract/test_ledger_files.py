"""A ledger in the store: what is read back, what is refused, and what can be read of another version."""

import gzip
import random
from dataclasses import replace
from pathlib import Path

import pytest

from isoloss_contract import ledger_files
from isoloss_contract.ledger import (
    Attempts,
    Intent,
    IntentAction,
    Ledger,
    LostLedger,
    Placement,
    Spend,
)
from isoloss_contract.store import BadRecord, NewerRecord, NotFound, Store
from tests.support import ledgers
from tests.support.ledgers import done, read_back, record, with_head

FOLDER = "sweeps/dense-u"


def ledger(points: int, **changes: object) -> Ledger:
    return ledgers.ledger(*map(record, range(points)), **changes)


def with_text(content: bytes, old: bytes, new: bytes) -> bytes:
    return gzip.compress(gzip.decompress(content).replace(old, new))


def test_whatever_happens_to_a_ledger_is_read_back_equal() -> None:
    """Points done, dropped, returned, reordered and forgotten, in random order."""
    chance = random.Random(1)
    now = ledger(40)
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
        assert read_back(now) == now


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
            record(0, intent=Intent(IntentAction.PAUSE, reason="BudgetExhausted")),
            done(1),
        ),
        lost=LostLedger("2026-11-28T00:00:00Z", "it ends early", "ledger.jsonl.gz.unreadable"),
        versions=({"torch": "2.9.0"},),
    )
    assert read_back(now) == now


def test_equal_ledgers_are_equal_bytes_and_the_head_is_read_without_the_points() -> None:
    content = ledger_files.encoded(ledger(3), epoch=7)
    assert content == ledger_files.encoded(ledger(3), epoch=7)
    assert ledger_files.decoded_head(content, "x").epoch == 7
    cut = gzip.compress(gzip.decompress(content).split(b"\n")[0] + b"\n{")
    assert ledger_files.decoded_head(cut, "x").sweep == "dense"


def test_two_thousand_finished_points_take_less_than_half_a_megabyte() -> None:
    points = tuple(
        replace(done(number), key=f"{number * 2654435761 % 2**128:032x}", loss=3 + number / 7e3)
        for number in range(2000)
    )
    assert len(ledger_files.encoded(ledger(0).replace(points=points), epoch=1)) < 500_000


def test_the_digest_is_that_of_the_content() -> None:
    now = ledger(20)
    assert now.digest == read_back(now).digest
    assert now.digest != now.replace(points=(done(0), *now.points[1:])).digest
    assert now.digest != now.replace(points=now.points[1:], former=now.points[:1]).digest


def test_where_sizes_are_placed_is_kept_and_part_of_the_digest() -> None:
    placement = Placement("small", 1.2e-3, 96, "published:step-law", "a" * 32)
    now = ledger(3, placements=(placement,))
    assert read_back(now).placements == (placement,)
    assert now.digest != ledger(3).digest


GOOD = ledger_files.encoded(ledger(3), epoch=1)


DAMAGED = {
    "not compressed": (b"{}", "not a gzip file"),
    "cut off": (GOOD[:-9], "ends early"),
    "changed": (GOOD[:60] + bytes([GOOD[60] ^ 1]) + GOOD[61:], "x"),
    "an unknown field": (with_head(GOOD, mood="bright"), "mood"),
    "an unknown field of a point": (with_text(GOOD, b'"proxy"', b'"prox"'), "x:1: "),
    "without its last point": (with_head(GOOD, planned_points=4), "3 of 4 planned points"),
    "a number of a point": (with_text(GOOD, b'"batch_size":8', b'"batch_size":4'), "was edited"),
    "without its digest": (with_head(GOOD, digest=None), "was edited"),
    "a name in its head": (with_head(GOOD, data_digest="b" * 32), "was edited"),
    "without a version": (with_head(GOOD, ledger_version=None), "ledger_version"),
    "of a version that nobody reads": (with_head(GOOD, ledger_version=4), "ledger_version"),
    "of a version that is no number": (with_head(GOOD, ledger_version="5"), "ledger_version"),
    "a bomb": (gzip.compress(b" " * (64 * 2**20 + 1)), "larger than"),
    "empty lines": (
        gzip.compress(gzip.decompress(GOOD) + b"\n" * ledger_files.MAX_LINES),
        f"more than {ledger_files.MAX_LINES} points",
    ),
    "too large": (b"\x1f" * (16 * 2**20 + 1), "larger than"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_ledger_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(BadRecord, match=message):
        ledger_files.decoded(content, "x")


def test_a_newer_version_is_told_from_a_damaged_ledger() -> None:
    head = b'{"ledger_version": %d, "points": "in another object"}' % (ledger_files.VERSION + 1)
    newer = gzip.compress(head + b"\nwhatever")
    for read in (ledger_files.decoded, ledger_files.decoded_head):
        with pytest.raises(NewerRecord, match=f"ledger version {ledger_files.VERSION + 1}; "):
            read(newer, "x")


def test_no_ledger_at_all_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        ledger_files.read_ledger(Store(f"file://{tmp_path}"), FOLDER)


def test_a_dropped_point_keeps_its_cost() -> None:
    spent = replace(done(0), attempts=Attempts(ended=1), spent=Spend(1e15, 60.0))
    other = replace(done(1), spent=Spend(2e15, 30.0))
    assert ledger(0).replace(points=(other,), former=(spent,)).spent == Spend(3e15, 90.0)
