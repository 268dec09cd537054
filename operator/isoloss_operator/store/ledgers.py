"""The sweeps' ledgers in the store: read once, then kept in memory and written when they change.

A write is conditional: it takes place only if the store still holds what this process read or wrote
last. So a former leader that has not noticed yet cannot overwrite the ledger of the present one.
"""

import time
from collections.abc import Callable
from typing import Protocol

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, LedgerHeader
from isoloss_contract.ledger_files import FoundLedger, decoded, decoded_head, encoded
from isoloss_contract.reading import ABSENT, Absent, Read, is_unknown
from isoloss_contract.records import DataManifest
from isoloss_contract.store import BadRecord, limits
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
        fresh = self._kept.get((uri, folder), self._check_seconds)
        if fresh is not None:
            return fresh.ledger
        known = self._kept.get((uri, folder))
        found = read_of(lambda: self._read(uri, folder, known))
        if isinstance(found, FoundLedger):
            self._kept.put((uri, folder), found)
            return found.ledger
        if known is not None and is_unknown(found):
            return known.ledger  # without an answer it stands
        self._kept.drop((uri, folder))
        return found

    def corpus(self, uri: str, folder: str) -> Read[DataManifest]:
        """What the ledger in `folder` says of the corpus; another worker may be writing that ledger."""

        def read() -> DataManifest | Absent:
            content, _, source = self._content(uri, folder)
            return decoded_head(content, source).corpus or ABSENT

        return read_of(read)

    def write(self, uri: str, folder: str, ledger: Ledger) -> None:
        """Write a ledger over the one that was read. Raises NotLeading, WriteConflict or StoreUnavailable.

        After the latter two the ledger is read again: what the store holds is another's, or unknown.
        """
        kept, epoch = self._kept.get((uri, folder)), self._leadership.epoch
        if kept is not None:
            self._check_epoch(kept.ledger, kept.epoch)
            epoch = self._leadership.epoch
        store, path = self._storage.store(uri), layout.ledger_in(folder)
        content, version = encoded(ledger, epoch), kept.version if kept else None
        self._kept.drop((uri, folder))
        version = self._storage.written(
            "ledger", uri, lambda: store.write_if(path, content, version)
        )
        self._kept.put((uri, folder), FoundLedger(ledger, epoch, version))

    # ------------------------------------------------------------------------------------- calls

    def _read(self, uri: str, folder: str, known: FoundLedger | None) -> FoundLedger:
        """What the store holds: `known`, if it still has that version."""
        content, version, source = self._content(uri, folder)
        if known is not None and known.version == version:
            return known
        ledger, head = decoded(content, source, lambda head: self._check_epoch(head, head.epoch))
        return FoundLedger(ledger, head.epoch, version)

    def _content(self, uri: str, folder: str) -> tuple[bytes, str, str]:
        """The object, its version, and its URI."""
        store, path = self._storage.store(uri), layout.ledger_in(folder)
        max_bytes = limits.LEDGER.max_bytes
        content, version = self._storage.timed(
            "ledger", lambda: store.read_versioned(path, max_bytes=max_bytes)
        )
        return content, version, store.location(path)

    def _check_epoch(self, found: LedgerHeader, epoch: int) -> None:
        """Raises NotLeading if the ledger was written by a later leader and this process is none, and BadRecord for
        the epoch of no leader: whoever may write to a store can write one there.
        """
        leadership, name = self._leadership, f"{found.namespace}/{found.sweep}"
        if epoch <= leadership.epoch:
            return
        if not leadership.can_exist(epoch):
            raise BadRecord(f"the ledger of {name}: no leader has had the epoch {epoch} yet")
        if not leadership.outrank(epoch):
            raise NotLeading(f"the ledger of {name} was written by the leader of epoch {epoch}")
