"""How a ledger is laid out in the store: a small head, and segments with the points' records.

The head names its segments, oldest first; of two records of one point the later counts. A change
writes one new segment with the records that changed, then the head, by a conditional write: whoever reads
sees the ledger before or after, and of two writers one is told. Segments grow geometrically, as in a
log-structured merge tree: a new one swallows those before it that are not more than twice as large. So
ten thousand points cost a pass kilobytes, and no ledger has more than about twenty segments. A segment has
a line for each point, so that no point's record holds up the process for longer than itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, LedgerHeader, PointRecord
from isoloss_contract.records import Digest, Record
from isoloss_contract.store import (
    BadRecord,
    NotFound,
    Store,
    limits,
    parse_record,
    parse_record_lines,
)

VERSION: Final = 4
"""Increased with every change of the format. A ledger with a larger one is left alone: this version would lose
what it does not know."""
MAX_SEGMENTS_BYTES: Final = 64 * 2**20
"""Size of all segments of a ledger together: of 45,000 points that failed twice each, or of 150,000 without a
failure."""
MAX_REVISION: Final = 2**53
"""More than any ledger gets to: a higher one was written by hand, and could be so high that none can follow."""
READS: Final = 3
"""A reader that comes between two writes finds a segment of the former head gone, and reads again."""


class SegmentReference(Record):
    """A segment of the ledger."""

    name: str = Field(max_length=64, pattern=r"^[0-9]+-[0-9a-f]{16}\.json$")
    sha256: Digest
    points: int = Field(ge=0)


class LedgerHead(LedgerHeader):
    """What stands in the head: all of a ledger but its points' records."""

    ledger_version: Literal[4] = 4
    epoch: int = Field(default=0, ge=0)
    """Epoch of the leader that wrote it: a process that finds a higher one than its own no longer leads."""
    revision: int = Field(default=1, ge=1, le=MAX_REVISION)
    """One more with every write."""
    digest: Digest
    """Ledger.digest of the whole."""
    segments: tuple[SegmentReference, ...] = Field(default=(), max_length=256)


@dataclass(frozen=True)
class _Entry:
    """One point in a segment."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    key: Digest
    position: Annotated[int, Field(ge=0)] | None = None
    """Its place in Ledger.points, or in Ledger.former."""
    is_former: bool = False
    record: PointRecord | None = None
    """None: the point is gone."""


_ENTRY = TypeAdapter(_Entry)
_HEADER: Final = frozenset(LedgerHeader.model_fields)


@dataclass(frozen=True)
class StoredLedger:
    """A ledger and how it is laid out in the store."""

    ledger: Ledger
    head: LedgerHead
    keys: tuple[frozenset[str], ...] = field(repr=False)
    """The points of each segment."""

    @property
    def document(self) -> bytes:
        """The bytes of the head."""
        return self.head.model_dump_json().encode()


@dataclass(frozen=True)
class FoundLedger:
    """A ledger and what a reader must know to write over it."""

    stored: StoredLedger
    version: str
    """Version of the head, for the next conditional write."""

    @property
    def ledger(self) -> Ledger:
        """What was found."""
        return self.stored.ledger


@dataclass(frozen=True)
class LedgerWrite:
    """What to write so that the store holds a ledger: the segments first, then the head."""

    stored: StoredLedger
    """What the store holds afterwards."""
    segments: Mapping[str, bytes]
    """New segments by name."""
    obsolete: tuple[str, ...]
    """Names of segments that the new head no longer needs: to delete once the head is written."""


# --------------------------------------------------------------------------------------- reading


def parse_head(content: bytes, source: str) -> LedgerHead:
    """The head of a ledger.

    Raises NewerRecord for a newer version, BadRecord for anything else that cannot be used.
    """
    return parse_record(
        content,
        LedgerHead,
        source,
        limit=limits.LEDGER_HEAD,
        newest=("ledger_version", VERSION),
    )


def assemble(head: LedgerHead, read: Callable[[str, int], bytes]) -> StoredLedger:
    """The ledger behind a head; `read` returns a segment by name, of so many bytes at the most.

    Raises what `read` raises, and BadRecord if a segment is not what the head names.
    """
    entries: dict[str, _Entry] = {}
    keys = []
    bytes_left = MAX_SEGMENTS_BYTES
    for segment in head.segments:
        content = read(segment.name, bytes_left)
        bytes_left -= len(content)
        if hashlib.sha256(content).hexdigest() != segment.sha256:
            raise BadRecord(f"{segment.name}: is not what the head names (SHA-256 differs)")
        found = parse_record_lines(content, _Entry, segment.name)
        keys.append(frozenset(entry.key for entry in found))
        entries.update((entry.key, entry) for entry in found)
    ledger = Ledger(
        points=_records(entries.values(), former=False),
        former=_records(entries.values(), former=True),
        **{name: value for name, value in head if name in _HEADER},
    )
    if ledger.digest != head.digest:
        raise BadRecord("the records of the segments do not have the digest that the head names")
    return StoredLedger(ledger, head, tuple(keys))


def read_ledger(store: Store, folder: str) -> Ledger:
    """The ledger of the sweep in `folder` of the store.

    Raises NotFound if there is none, BadRecord, NewerRecord or StoreUnavailable.
    """

    def read(path: str, max_bytes: int) -> tuple[bytes, str]:
        return store.read_versioned(path, max_bytes=max_bytes)

    return find_ledger(read, store.location, folder).ledger


def find_ledger(
    read: Callable[[str, int], tuple[bytes, str]],
    location: Callable[[str], str],
    folder: str,
    check: Callable[[LedgerHead], None] = lambda _: None,
) -> FoundLedger:
    """What `folder` holds; `read` returns an object of so many bytes at the most, and its version,
    `location` names one for people.

    `check` may refuse a head before its segments are read. Raises what `read` and `check` raise,
    BadRecord or NewerRecord; NotFound if there is none.
    """
    for _ in range(READS - 1):
        try:
            return _find_once(read, location, folder, check)
        except MissingSegment:
            continue  # another has written meanwhile
    return _find_once(read, location, folder, check)


class MissingSegment(BadRecord):
    """A segment that the head names is not there: it was replaced meanwhile, or is lost."""


def _find_once(
    read: Callable[[str, int], tuple[bytes, str]],
    location: Callable[[str], str],
    folder: str,
    check: Callable[[LedgerHead], None],
) -> FoundLedger:
    path = layout.ledger_in(folder)
    content, version = read(path, limits.LEDGER_HEAD.max_bytes)
    head = parse_head(content, location(path))
    check(head)

    def read_segment(name: str, max_bytes: int) -> bytes:
        try:
            return read(layout.ledger_segment_in(folder, name), max_bytes)[0]
        except NotFound as error:
            raise MissingSegment(f"{error}: a segment of the ledger is missing") from error

    return FoundLedger(assemble(head, read_segment), version)


def _records(entries: Iterable[_Entry], *, former: bool) -> tuple[PointRecord, ...]:
    placed = sorted(
        (entry.position, entry.key, entry.record)
        for entry in entries
        if entry.record is not None and entry.position is not None and entry.is_former is former
    )
    return tuple(record for _, _, record in placed)


# --------------------------------------------------------------------------------------- writing


def next_write(before: StoredLedger | None, ledger: Ledger, epoch: int) -> LedgerWrite:
    """How to write `ledger` over what the store holds; `before` is None if it holds nothing."""
    places = _places(ledger)
    kept = [] if before is None else list(zip(before.head.segments, before.keys, strict=True))
    changed = _changed(before, places)
    while kept and changed and kept[-1][0].points <= 2 * len(changed):
        changed |= kept.pop()[1]
    revision = 1 if before is None else min(before.head.revision + 1, MAX_REVISION)
    segments: dict[str, bytes] = {}
    if changed:
        content = _segment(changed, places, keep_gone=bool(kept))
        reference = _reference(content, revision, len(changed))
        segments[reference.name] = content
        kept.append((reference, changed))
    head = LedgerHead(
        epoch=epoch,
        revision=revision,
        digest=ledger.digest,
        segments=tuple(reference for reference, _ in kept),
        **{name: value for name, value in ledger if name in _HEADER},
    )
    stored = StoredLedger(ledger, head, tuple(keys for _, keys in kept))
    former = () if before is None else before.head.segments
    obsolete = tuple(each.name for each in former if each not in head.segments)
    return LedgerWrite(stored, segments, obsolete)


_Place = tuple[bool, int, PointRecord]
"""Whether it is a former point, its position there, and the record."""


def _places(ledger: Ledger) -> dict[str, _Place]:
    planned = {record.key: (False, n, record) for n, record in enumerate(ledger.points)}
    return planned | {record.key: (True, n, record) for n, record in enumerate(ledger.former)}


def _changed(before: StoredLedger | None, places: Mapping[str, _Place]) -> frozenset[str]:
    """Keys of the points that are new, changed, moved or gone."""
    known = {} if before is None else _places(before.ledger)
    changed = {key for key, place in places.items() if known.get(key) != place}
    return frozenset(changed | (known.keys() - places.keys()))


def _segment(keys: Iterable[str], places: Mapping[str, _Place], *, keep_gone: bool) -> bytes:
    """The bytes of a segment, a line for each point. Points that are gone need no entry if no earlier segment has one."""
    found = (_entry(key, places.get(key)) for key in sorted(keys) if keep_gone or key in places)
    return b"".join(_ENTRY.dump_json(entry, exclude_defaults=True) + b"\n" for entry in found)


def _entry(key: str, place: _Place | None) -> _Entry:
    if place is None:
        return _Entry(key)
    is_former, position, record = place
    return _Entry(key, position, is_former, record)


def _reference(content: bytes, revision: int, points: int) -> SegmentReference:
    sha256 = hashlib.sha256(content).hexdigest()
    return SegmentReference(name=f"{revision}-{sha256[:16]}.json", sha256=sha256, points=points)
