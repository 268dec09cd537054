"""Who trains a point: a claim with a heartbeat keeps two pods from mixing their output.

Object stores have no lock in common, so that this is a lease: a pod that was cut off and comes back
finds another's claim before it writes a manifest or a result, and exits.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from isoloss_contract import layout
from isoloss_contract.records import Claimant, Record
from isoloss_contract.store import BadRecord, NotFound, Store
from isoloss_trainer.termination import ClaimedElsewhere, Interrupted

FRESH_SECONDS = 60.0
HEARTBEAT_SECONDS = 15.0


class Claim(Record):
    """The content of claim.json."""

    claimant: Claimant
    holder: str
    """A random name of the process: it distinguishes two pods of one attempt."""
    updated_at: str
    """RFC 3339, UTC."""


class Fence:
    """This process's claim on a point."""

    def __init__(self, store: Store, key: str, claimant: Claimant) -> None:
        self._store = store
        self._path = layout.point_claim(key)
        self._claimant = claimant
        self._holder = uuid.uuid4().hex

    def acquire(self) -> None:
        """Take the claim. Raises ClaimedElsewhere while another sweep, or a later attempt of this
        one, trains the point."""
        held = self._read()
        if held is not None and _age(held) < FRESH_SECONDS and self._yields_to(held.claimant):
            raise ClaimedElsewhere(
                "ClaimedElsewhere",
                f"sweep {held.claimant.sweep_uid} (attempt {held.claimant.attempt}) holds this "
                f"point; last heartbeat less than {FRESH_SECONDS:.0f} s ago",
            )
        self._write()

    def beat(self) -> None:
        """Renew the claim. Raises Interrupted(Superseded) if another has taken it."""
        self.check()
        self._write()

    def check(self) -> None:
        """Raises Interrupted(Superseded) unless the claim is still ours. Call before each manifest or result."""
        held = self._read()
        if held is None:
            # An attempt that took over may have finished and released it: its result must stand.
            raise Interrupted("Superseded", "the claim on this point is gone")
        if held.holder != self._holder:
            raise Interrupted(
                "Superseded",
                f"attempt {held.claimant.attempt} of sweep {held.claimant.sweep_uid} took over",
            )

    def release(self) -> None:
        """Give the claim back, so that others need not wait for the heartbeat to expire."""
        held = self._read()
        if held is not None and held.holder == self._holder:
            self._store.remove(self._path)

    def _yields_to(self, other: Claimant) -> bool:
        if other.sweep_uid != self._claimant.sweep_uid:
            return True
        return other.attempt > self._claimant.attempt

    def _read(self) -> Claim | None:
        try:
            return self._store.read_record(self._path, Claim)
        except (NotFound, BadRecord):
            return None

    def _write(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        claim = Claim(claimant=self._claimant, holder=self._holder, updated_at=now)
        self._store.write_record(self._path, claim)


def _age(claim: Claim) -> float:
    """Seconds since the last heartbeat; infinite if the time is not readable."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(claim.updated_at)).total_seconds()
    except (ValueError, TypeError):
        return float("inf")
