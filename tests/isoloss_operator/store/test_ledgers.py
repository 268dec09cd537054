"""Ledgers as the operator keeps them: two writers, restarts, newer versions, lost answers."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, PointState
from isoloss_contract.ledger_files import VERSION, encoded, read_ledger
from isoloss_contract.reading import ABSENT, Newer, Unanswered, Unreadable
from isoloss_contract.store import NotFound, Store, StoreUnavailable, WriteConflict
from isoloss_operator.planning.points import without_shards
from isoloss_operator.store.ledgers import Ledgers, NotLeading
from isoloss_operator.store.storage import Storage
from tests.support.builders import manifest
from tests.support.chance import Clock
from tests.support.ledgers import head_of, ledger, record, with_head

FOLDER = "sweeps/dense-u"


@dataclass
class Term:
    """The leadership of one operator process; `held` is whether the Lease still names it."""

    epoch: int = 1
    held: bool = True

    def can_exist(self, epoch: int) -> bool:
        return epoch <= 1000

    def outrank(self, epoch: int) -> bool:
        if self.held:
            self.epoch = epoch + 1
        return self.held


def operator(term: Term | None = None, clock: Clock | None = None) -> Ledgers:
    """The ledgers of a new process, which looks at what it knows once a minute."""
    storage = Storage(readers=1)
    return Ledgers(storage, term or Term(), check_seconds=60, clock=clock or Clock())


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


LEDGER = ledger(*map(record, range(20)), uid="u")


def with_done(ledger: Ledger, *numbers: int) -> Ledger:
    points = tuple(
        replace(point, state=PointState.SUCCEEDED) if index in numbers else point
        for index, point in enumerate(ledger.points)
    )
    return ledger.replace(points=points)


def test_an_epoch_that_no_leader_can_have_had_is_not_outranked(uri: str) -> None:
    """Whoever may write to a store can write one there: it must move nobody's Lease."""
    operator(Term(epoch=1001)).write(uri, FOLDER, LEDGER)
    term = Term()
    found = operator(term).read(uri, FOLDER)
    assert isinstance(found, Unreadable)
    assert "research/dense: no leader has had the epoch 1001 yet" in found.message
    assert term == Term()


def test_the_corpus_is_read_beside_whoever_writes_the_ledger(uri: str) -> None:
    """By predictions: what the sweep's own worker knows of its ledger must not become older by that."""
    writer, corpus = operator(), without_shards(manifest())
    assert writer.corpus(uri, FOLDER) == ABSENT
    writer.write(uri, FOLDER, LEDGER)
    assert writer.corpus(uri, FOLDER) == ABSENT
    writer.write(uri, FOLDER, LEDGER.replace(corpus=corpus))
    assert operator().corpus(uri, FOLDER) == corpus
    operator().write(uri, "sweeps/other-v", LEDGER)
    assert writer.corpus(uri, FOLDER) == corpus
    writer.write(uri, FOLDER, with_done(LEDGER, 3))
    assert operator().read(uri, FOLDER) == with_done(LEDGER, 3)


def test_what_was_written_is_read_by_the_next_process(uri: str) -> None:
    first = operator()
    first.write(uri, FOLDER, LEDGER)
    first.write(uri, FOLDER, with_done(LEDGER, 3))
    assert first.read(uri, FOLDER) == with_done(LEDGER, 3)
    assert operator().read(uri, FOLDER) == with_done(LEDGER, 3)


def test_a_ledger_that_another_removed_or_wrote_is_missed_or_read_within_a_minute(
    uri: str, tmp_path: Path
) -> None:
    clock = Clock()
    ledgers = operator(clock=clock)
    ledgers.write(uri, FOLDER, LEDGER)
    (tmp_path / layout.ledger_in(FOLDER)).unlink()
    clock.now = 59
    assert ledgers.read(uri, FOLDER) == LEDGER
    clock.now = 60
    assert ledgers.read(uri, FOLDER) == ABSENT
    ledgers.write(uri, FOLDER, LEDGER)
    other = operator()
    assert other.read(uri, FOLDER) == LEDGER
    other.write(uri, FOLDER, with_done(LEDGER, 1))
    clock.now = 120
    assert ledgers.read(uri, FOLDER) == with_done(LEDGER, 1)


def test_a_ledger_in_memory_outlives_an_outage_of_the_store(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    ledgers = operator(clock=clock)
    ledgers.write(uri, FOLDER, LEDGER)

    def unavailable(*_: object, **__: object) -> None:
        raise StoreUnavailable("no answer")

    clock.now = 60
    monkeypatch.setattr(Store, "read_versioned", unavailable)
    assert ledgers.read(uri, FOLDER) == LEDGER


def test_a_ledger_is_one_object(uri: str, tmp_path: Path) -> None:
    ledgers, now = operator(), LEDGER
    ledgers.write(uri, FOLDER, now)
    for number in range(20):
        now = with_done(now, number)
        ledgers.write(uri, FOLDER, now)
    assert [path.name for path in (tmp_path / FOLDER).glob("[!.]*")] == ["ledger.jsonl.gz"]


def test_of_two_writers_the_second_is_told_and_loses_nothing_of_the_first(uri: str) -> None:
    """Two operators that both lead: each reads again before it writes."""
    one, other = operator(), operator()
    one.write(uri, FOLDER, LEDGER)
    assert other.read(uri, FOLDER) == LEDGER
    one.write(uri, FOLDER, with_done(LEDGER, 1))
    with pytest.raises(WriteConflict):
        other.write(uri, FOLDER, with_done(LEDGER, 2))
    found = other.read(uri, FOLDER)
    assert isinstance(found, Ledger)
    other.write(uri, FOLDER, with_done(found, 2))
    assert read_ledger(Store(uri), FOLDER) == with_done(LEDGER, 1, 2)


def test_of_two_first_writers_one_is_told(uri: str) -> None:
    one, other = operator(), operator()
    assert other.read(uri, FOLDER) == ABSENT
    one.write(uri, FOLDER, LEDGER)
    with pytest.raises(WriteConflict):
        other.write(uri, FOLDER, with_done(LEDGER, 2))


def test_a_former_leader_that_meets_a_later_epoch_stops(uri: str) -> None:
    former, present = operator(Term(epoch=1, held=False)), operator(Term(epoch=2))
    former.write(uri, FOLDER, LEDGER)
    present.read(uri, FOLDER)
    present.write(uri, FOLDER, with_done(LEDGER, 1))
    with pytest.raises(WriteConflict):
        former.write(uri, FOLDER, with_done(LEDGER, 2))
    with pytest.raises(NotLeading, match="epoch 2"):
        former.read(uri, FOLDER)


def test_a_leader_whose_lease_was_deleted_outranks_what_it_finds(uri: str) -> None:
    """Epochs begin anew with the Lease; holding it is what counts."""
    operator(Term(epoch=7)).write(uri, FOLDER, LEDGER)
    term = Term(epoch=1)
    ledgers = operator(term)
    assert ledgers.read(uri, FOLDER) == LEDGER
    ledgers.write(uri, FOLDER, with_done(LEDGER, 1))
    assert term.epoch == 8
    assert head_of(Store(uri).read(layout.ledger_in(FOLDER)))["epoch"] == 8


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (
            with_head(encoded(LEDGER, epoch=1), ledger_version=VERSION + 1),
            Newer,
            f"ledger version {VERSION + 1}; this one knows up to {VERSION}",
        ),
        (encoded(LEDGER, epoch=1)[:-9], Unreadable, f"{layout.ledger_in(FOLDER)}: ends early"),
    ],
    ids=["newer", "damaged"],
)
def test_a_ledger_that_cannot_be_read_says_why(
    uri: str, content: bytes, kind: type[Newer | Unreadable], says: str
) -> None:
    Store(uri).write(layout.ledger_in(FOLDER), content)
    found = operator().read(uri, FOLDER)
    assert isinstance(found, kind)
    assert says in found.message


def test_a_ledger_that_could_not_be_written_is_not_believed(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = operator()
    ledgers.write(uri, FOLDER, LEDGER)

    def refuse(*_: object) -> str:
        raise StoreUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr("isoloss_contract.store.Store.write_if", refuse)
        with pytest.raises(StoreUnavailable):
            ledgers.write(uri, FOLDER, with_done(LEDGER, 1))
    assert ledgers.read(uri, FOLDER) == LEDGER, "what is stored is read again"


def test_a_missing_bucket_is_an_unavailable_store_when_written_to(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_found(*_: object) -> None:
        raise NotFound("no such bucket")

    monkeypatch.setattr("isoloss_contract.store.Store.write_if", not_found)
    with pytest.raises(StoreUnavailable, match="no such bucket"):
        operator().write(uri, FOLDER, LEDGER)


def test_a_store_that_is_down_has_not_answered(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(*_: object, **__: object) -> bytes:
        raise StoreUnavailable("timeout")

    monkeypatch.setattr("isoloss_contract.store.Store.read_versioned", time_out)
    assert operator().read(uri, FOLDER) == Unanswered("timeout")
