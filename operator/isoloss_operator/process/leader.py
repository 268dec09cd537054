"""Leader election with a Lease, like client-go's: one process works, the others wait.

The Python client's elector neither releases the lease on exit nor can be stopped, and it compares wall clocks.
Safety does not depend on the election alone: Job names are deterministic, and what is written to the store
carries the leader's epoch.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from isoloss_operator.cluster.client import LEASE, Cluster, ClusterError, Conflict

logger = logging.getLogger(__name__)
Lease = dict[str, Any]

FIRST_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""New Leases count their transitions from the seconds since then; int32 holds 68 years of them."""
CLOCKS_APART = 365 * 86400
"""Seconds by which the clocks of two leaders may differ. Epochs further ahead of the clock are believed of no store: a
tenant could use up those that int32 holds, and nobody would lead any more."""


@dataclass(frozen=True)
class Terms:
    """Seconds: a leader that does not renew stops after `deadline` and is replaced after `lease`, which must be later.

    The settings are checked for it.
    """

    lease: float = 15.0
    deadline: float = 10.0
    period: float = 2.0

    @property
    def call_seconds(self) -> float:
        """Limit of one call: a renewal is two of them, and both must fit into the deadline."""
        return self.deadline / 2


def _uptime() -> float:
    """Seconds that go on while the machine sleeps, unlike those of time.monotonic."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Elector:
    """Acquires and renews the lease. `acquire` blocks; `keep` renews in a thread of its own.

    `epoch` is the Lease's leaseTransitions, one more for every change of leaders. A Lease that was deleted
    is made anew with the seconds since FIRST_EPOCH, which are more than the transitions that any Lease can
    have seen since its own creation, as leaders change less than once a second. Should the clock have gone
    back meanwhile, a writer that meets a higher epoch in the store asks `outrank` for one above it.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms,
        *,
        clock: Callable[[], float] = _uptime,
    ) -> None:
        """`cluster` must be the Lease's own client: without retries, and with `terms.call_seconds`."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._terms = terms
        self._clock = clock
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._seen: tuple[Any, ...] = ()
        self._seen_at = 0.0
        """Another's lease expires relative to when we saw it change: two machines' clocks differ."""
        self._renewed = 0.0
        """When the newest successful renewal was asked for."""
        self._losing = threading.Lock()
        self._writing = threading.Lock()
        self.is_leader = False
        self.epoch = 0
        """Higher than that of every earlier leader; 0 before this process led."""

    def acquire(self) -> bool:
        """Wait until this process leads; False if `stop` was called first."""
        while not self._stop.is_set():
            if self._try_once():
                self.is_leader = True
                return True
            self._stop.wait(self._terms.period)
        return False

    def keep(self, on_lost: Callable[[], None]) -> None:
        """Renew in the background. `on_lost` is called once if that fails for the renew deadline.

        It is called then even while a call hangs: a thread of its own watches the time.
        """
        for name, run in (("leader", self._keep), ("leader-watch", self._watch)):
            thread = threading.Thread(target=run, args=(on_lost,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def can_exist(self, epoch: int) -> bool:
        """Whether any leader can have had this epoch by now."""
        return epoch <= _epoch_of_now() + CLOCKS_APART

    def outrank(self, epoch: int) -> bool:
        """Raise the own epoch above another found in the store; False if this process does not lead.

        Raises ClusterError if the API server does not answer, or the Lease changes meanwhile.
        """
        with self._writing:
            lease = self._cluster.get(LEASE, self._namespace, self._name)
            if not self.is_leader or lease is None or not self._is_ours(lease):
                return False
            acquired = lease["spec"].get("acquireTime") or _now()
            self._put(lease, acquired, max(self.epoch, epoch + 1))
        return True

    def stop(self) -> None:
        """Stop waiting or renewing, and release the lease so that the next leader need not wait."""
        self._stop.set()
        for thread in self._threads:
            thread.join(self._terms.deadline)
        if self.is_leader:
            self.is_leader = False
            self._release()

    # -------------------------------------------------------------------------------- renewing

    def _keep(self, on_lost: Callable[[], None]) -> None:
        while not self._stop.wait(self._terms.period):
            if not self._try_once() and self._held_by_another():
                self._lose(on_lost)
                return

    def _watch(self, on_lost: Callable[[], None]) -> None:
        """Depends on no call: the renewal itself may hang for longer than the lease lasts."""
        pause = min(self._terms.period, (self._terms.lease - self._terms.deadline) / 4)
        while not self._stop.wait(pause):
            if self._clock() - self._renewed > self._terms.deadline:
                self._lose(on_lost)
                return

    def _lose(self, on_lost: Callable[[], None]) -> None:
        with self._losing:
            if not self.is_leader:
                return
            self.is_leader = False
        self._stop.set()  # a renewal that succeeds after all must not keep others from the lease
        on_lost()

    def _try_once(self) -> bool:
        """Create, take over or renew the lease; False if another holds it or the call failed."""
        asked = self._clock()
        try:
            with self._writing:
                is_ours = self._take()
        except Conflict:
            return False
        except ClusterError as error:
            logger.warning("Lease %s/%s: %s", self._namespace, self._name, error)
            return False
        if is_ours:
            self._renewed = asked
        return is_ours

    def _take(self) -> bool:
        lease = self._cluster.get(LEASE, self._namespace, self._name)
        if lease is None:
            self._create()
            return True
        spec = lease["spec"]
        seen = (spec.get("holderIdentity") or "", spec.get("renewTime"), spec.get("acquireTime"))
        if seen != self._seen:
            self._seen = seen
            self._seen_at = self._clock()
        seconds = float(spec.get("leaseDurationSeconds") or self._terms.lease)
        if self._held_by_another() and self._clock() - self._seen_at <= seconds:
            return False
        self._renew(lease)
        return True

    def _held_by_another(self) -> bool:
        return bool(self._seen and self._seen[0] not in ("", self._identity))

    def _is_ours(self, lease: Lease) -> bool:
        spec = lease["spec"]
        return (spec.get("holderIdentity"), spec.get("leaseTransitions")) == (
            self._identity,
            self.epoch,
        )

    # --------------------------------------------------------------------------------- writing

    def _create(self) -> None:
        """Make the Lease, with an epoch above all that a deleted one can have had."""
        epoch = max(self.epoch + 1, _epoch_of_now())
        lease = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec(_now(), epoch),
        }
        self._cluster.create(LEASE, self._namespace, lease)
        self._note_held(epoch)

    def _renew(self, lease: Lease) -> None:
        spec = lease["spec"]
        transitions = int(spec.get("leaseTransitions") or 0)
        if spec.get("holderIdentity") == self._identity:
            self._put(lease, spec.get("acquireTime") or _now(), max(self.epoch, transitions))
        else:
            self._put(lease, _now(), max(self.epoch, transitions) + 1)

    def _put(self, lease: Lease, acquired: str, epoch: int) -> None:
        """Write over the Lease as read, by its resourceVersion: of two candidates one gets a conflict."""
        body = {**lease, "spec": self._spec(acquired, epoch)}
        self._cluster.replace(LEASE, self._namespace, self._name, body)
        self._note_held(epoch)

    def _note_held(self, epoch: int) -> None:
        self.epoch = epoch
        self._seen = (self._identity,)

    def _spec(self, acquired: str, epoch: int) -> Lease:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._terms.lease),  # never less than the deadline
            "acquireTime": acquired,
            "renewTime": _now(),
            "leaseTransitions": epoch,
        }

    def _release(self) -> None:
        try:
            lease = self._cluster.get(LEASE, self._namespace, self._name)
            if lease is None or lease["spec"].get("holderIdentity") != self._identity:
                return
            spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            released = {**lease, "spec": {**spec, "renewTime": _now()}}
            self._cluster.replace(LEASE, self._namespace, self._name, released)
        except ClusterError as error:
            logger.info("Lease not released, it expires by itself: %s", error)


def _epoch_of_now() -> int:
    return int((datetime.now(UTC) - FIRST_EPOCH).total_seconds())


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
