"""The sweeps' ledgers in the store: read once, then written by changes alone.

A write is conditional: it takes place only if the store still holds what this process read or wrote
last. So a former leader that has not noticed yet cannot overwrite the ledger of the present one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.ledger_files import (
    FoundLedger,
    LedgerHead,
    find_ledger,
    next_write,
    parse_head,
)
from isoloss_contract.reading import ABSENT, Absent, Read, is_unknown
from isoloss_contract.records import DataManifest
from isoloss_contract.store import BadRecord, Store, StoreError, limits
from isoloss_operator.store.recent import Recent
from isoloss_operator.store.storage import Storage, read_of

KEPT = 256
"""Ledgers in memory; one that is dropped is read again."""


class NotLeading(Exception):
    """A ledger carries the epoch of a later leader: this process must stop."""

    expected = True


class Leadership(Protocol):
    """Who may write."""

    epoch: int
    """Epoch of this process' term as the leader."""

    def can_exist(self, epoch: int) -> bool:
        """Whether any leader can have had this epoch by now."""

    def outrank(self, epoch: int) -> bool:
        """Raise the own epoch above another found in the store; False if this process does not lead."""


class Ledgers:
    """Reads and writes the ledgers of all sweeps. Thread-safe if each sweep has one worker at a time."""

    def __init__(
        self,
        storage: Storage,
        leadership: Leadership,
        *,
        check_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A ledger in memory is compared with the store's every `check_seconds`."""
        self._storage = storage
        self._leadership = leadership
        self._check_seconds = check_seconds
        self._kept: Recent[tuple[str, str], FoundLedger] = Recent(KEPT, clock)
        """Put again whenever the store is known to hold it still."""

    def read(self, uri: str, folder: str) -> Read[Ledger]:
        """The ledger of the sweep in `folder`. One that was removed or replaced in the store is read again."""
        known = self._standing(uri, folder)
        if known is None:
            found = read_of(lambda: self._find(uri, folder))
            if not isinstance(found, FoundLedger):
                return found
            self._kept.put((uri, folder), found)
            known = found
        return known.ledger

    def corpus(self, uri: str, folder: str) -> Read[DataManifest]:
        """What the ledger in `folder` says of the corpus; another worker may be writing that ledger."""

        def read() -> DataManifest | Absent:
            path = layout.ledger_in(folder)
            content, _ = self._read(uri, path, limits.LEDGER_HEAD.max_bytes)
            return parse_head(content, self._storage.store(uri).location(path)).corpus or ABSENT

        return read_of(read)

    def write(self, uri: str, folder: str, ledger: Ledger) -> None:
        """Write what changed. Raises NotLeading, WriteConflict or StoreUnavailable.

        After the latter two the ledger is read again: what the store holds is another's, or unknown.
        """
        kept = self._kept.get((uri, folder))
        before, version = (kept.stored, kept.version) if kept else (None, None)
        if before is not None:
            self._check_epoch(before.head)
        write = next_write(before, ledger, self._leadership.epoch)
        store, head = self._storage.store(uri), layout.ledger_in(folder)
        self._kept.drop((uri, folder))
        for name, content in write.segments.items():
            self._storage.write("ledger", uri, layout.ledger_segment_in(folder, name), content)
        version = self._storage.written(
            "ledger", uri, lambda: store.write_if(head, write.stored.document, version)
        )
        self._kept.put((uri, folder), FoundLedger(write.stored, version))
        self._remove(store, folder, write.obsolete)

    # ------------------------------------------------------------------------------------ memory

    def _standing(self, uri: str, folder: str) -> FoundLedger | None:
        """The ledger in memory, unless the store holds another head by now, or none. Without an answer it
        stands."""
        fresh = self._kept.get((uri, folder), self._check_seconds)
        known = fresh or self._kept.get((uri, folder))
        if known is None or fresh is not None:
            return known
        version = read_of(
            lambda: self._read(uri, layout.ledger_in(folder), limits.LEDGER_HEAD.max_bytes)[1]
        )
        if version == known.version:
            self._kept.put((uri, folder), known)
        elif not is_unknown(version):
            self._kept.drop((uri, folder))
            return None
        return known

    # ------------------------------------------------------------------------------------- calls

    def _read(self, uri: str, path: str, max_bytes: int) -> tuple[bytes, str]:
        store = self._storage.store(uri)
        read = partial(store.read_versioned, path, max_bytes=max_bytes)
        return self._storage.timed("ledger", read)

    def _find(self, uri: str, folder: str) -> FoundLedger:
        read = partial(self._read, uri)
        return find_ledger(read, self._storage.store(uri).location, folder, self._check_epoch)

    def _check_epoch(self, head: LedgerHead) -> None:
        """Raises NotLeading if the ledger was written by a later leader and this process is none, and BadRecord for
        the epoch of no leader: whoever may write to a store can write one there.
        """
        leadership, name = self._leadership, f"{head.namespace}/{head.sweep}"
        if head.epoch <= leadership.epoch:
            return
        if not leadership.can_exist(head.epoch):
            raise BadRecord(f"the ledger of {name}: no leader has had the epoch {head.epoch} yet")
        if not leadership.outrank(head.epoch):
            raise NotLeading(
                f"the ledger of {name} was written by the leader of epoch {head.epoch}"
            )

    def _remove(self, store: Store, folder: str, names: tuple[str, ...]) -> None:
        """Delete segments that no head names any more; what cannot be deleted is left."""
        for name in names:
            try:
                store.remove(layout.ledger_segment_in(folder, name))
            except StoreError:
                return
