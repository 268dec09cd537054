"""The sweeps' ledgers in the store: read once, then written by changes alone.

A write is conditional: it takes place only where the store still holds what this process read or wrote
last. So a former leader that has not noticed yet cannot overwrite the ledger of the present one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.ledger_files import (
    MAX_LEDGER_BYTES,
    LedgerHead,
    StoredLedger,
    assemble,
    ledger_of_version_1,
    next_write,
    parse_head,
    read_segment,
)
from isoloss_contract.reading import Read
from isoloss_contract.store import NotFound, Store, StoreError, StoreUnavailable
from isoloss_operator.store.reads import read_of
from isoloss_operator.store.recent import Recent

Answer = TypeVar("Answer")
Timed = Callable[[str, Callable[[], Answer]], Answer]
KEPT = 256
"""Ledgers in memory; one that is dropped is read again."""


class NotLeading(Exception):
    """A ledger carries the epoch of a later leader: this process must stop."""

    expected = True


class Leadership(Protocol):
    """Who may write."""

    epoch: int
    """Of this process' term as the leader."""

    def outrank(self, epoch: int) -> bool:
        """Raise the own epoch above another found in the store; False if this process does not lead."""


@dataclass(frozen=True)
class _Kept:
    """What the store holds, as far as this process knows."""

    ledger: Ledger
    stored: StoredLedger | None = None
    """None: in the layout of version 1."""
    version: str | None = None
    """Of the head, for the next conditional write; None: there is no head."""


class Ledgers:
    """Reads and writes the ledgers of all sweeps. Thread-safe where each sweep has one worker at a time."""

    def __init__(
        self,
        store: Callable[[str], Store],
        timed: Timed[object],
        leadership: Leadership,
    ) -> None:
        """`store` opens a URI; `timed` makes a call by name and measures it."""
        self._store = store
        self._timed = timed
        self._leadership = leadership
        self._kept: Recent[tuple[str, str], _Kept] = Recent(KEPT)

    def read(self, uri: str, folder: str) -> Read[Ledger]:
        """The ledger of the sweep in `folder`."""
        known = self._kept.get((uri, folder))
        if known is None:
            found = read_of(lambda: self._find(uri, folder))
            if not isinstance(found, _Kept):
                return found
            self._kept.put((uri, folder), found)
            known = found
        return known.ledger

    def write(self, uri: str, folder: str, ledger: Ledger) -> None:
        """Write what changed. Raises NotLeading, WriteConflict or StoreUnavailable.

        After the latter two the ledger is read again: what the store holds is another's, or unknown.
        """
        known = self._kept.get((uri, folder))
        before, version = (known.stored, known.version) if known else (None, None)
        self._check_epoch(before.head if before else None, layout.ledger_in(folder))
        write = next_write(before, ledger, self._leadership.epoch)
        store, head = self._store(uri), layout.ledger_in(folder)
        self._kept.drop((uri, folder))
        try:
            for name, content in write.segments.items():
                self._write(store, layout.ledger_segment_in(folder, name), content)
            version = self._call(
                "ledger", lambda: store.write_if(head, write.stored.document, version)
            )
        except NotFound as error:
            # A missing bucket: only a write can distinguish it from a missing object.
            raise StoreUnavailable(f"{uri}: no such bucket or folder") from error
        self._kept.put((uri, folder), _Kept(ledger, write.stored, version))
        self._remove(store, folder, write.obsolete)

    # ------------------------------------------------------------------------------------- calls

    def _find(self, uri: str, folder: str) -> _Kept:
        store, path = self._store(uri), layout.ledger_in(folder)
        try:
            content, version = self._call(
                "ledger", lambda: store.read_versioned(path, max_bytes=MAX_LEDGER_BYTES)
            )
        except NotFound:
            path = layout.former_ledger_in(folder)
            content = self._read(store, path)
            return _Kept(ledger_of_version_1(content, store.location(path)))
        head = parse_head(content, store.location(path))
        self._check_epoch(head, path)

        def read(name: str) -> bytes:
            segment = layout.ledger_segment_in(folder, name)
            return read_segment(lambda path: self._read(store, path), segment)

        stored = assemble(head, read)
        return _Kept(stored.ledger, stored, version)

    def _check_epoch(self, head: LedgerHead | None, path: str) -> None:
        """Raises NotLeading where the ledger was written by a later leader and this process is none."""
        leadership = self._leadership
        if head is None or head.epoch <= leadership.epoch or leadership.outrank(head.epoch):
            return
        raise NotLeading(f"{path}: written by the leader of epoch {head.epoch}")

    def _read(self, store: Store, path: str) -> bytes:
        return self._call("ledger", lambda: store.read(path, max_bytes=MAX_LEDGER_BYTES))

    def _write(self, store: Store, path: str, content: bytes) -> None:
        self._call("ledger", lambda: store.write(path, content))

    def _remove(self, store: Store, folder: str, names: tuple[str, ...]) -> None:
        """Delete segments that no head names any more; what cannot be deleted is left."""
        for name in names:
            try:
                store.remove(layout.ledger_segment_in(folder, name))
            except StoreError:
                return

    def _call(self, name: str, call: Callable[[], Answer]) -> Answer:
        return self._timed(name, call)  # type: ignore[return-value]
