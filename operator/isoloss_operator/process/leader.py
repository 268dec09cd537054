"""Leader election with a Lease, like client-go's: one process works, the others wait.

The Python client's elector neither releases the lease on exit nor can be stopped, and it compares wall clocks.
Safety does not depend on the election alone: Job names are deterministic, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from isoloss_operator.cluster.client import LEASE, Cluster, ClusterError, Conflict

logger = logging.getLogger(__name__)
Lease = dict[str, Any]


@dataclass(frozen=True)
class Terms:
    """Seconds: a leader that does not renew stops after `deadline` and is replaced after `lease`."""

    lease: float = 15.0
    deadline: float = 10.0
    period: float = 2.0

    def __post_init__(self) -> None:
        if not self.period < self.deadline < self.lease:
            raise ValueError("a lease needs: renew period < renew deadline < lease duration")


class Elector:
    """Acquires and renews the lease. `acquire` blocks; `keep` renews in a thread of its own."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._terms = terms
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: tuple[Any, ...] = ()
        self._seen_at = 0.0
        """Another's lease expires relative to when we saw it change: two machines' clocks differ."""
        self.is_leader = False

    def acquire(self) -> bool:
        """Wait until this process leads; False if `stop` was called first."""
        while not self._stop.is_set():
            if self._try_once():
                self.is_leader = True
                return True
            self._stop.wait(self._terms.period)
        return False

    def keep(self, on_lost: Callable[[], None]) -> None:
        """Renew in the background. `on_lost` is called once if that fails for the renew deadline."""
        self._thread = threading.Thread(
            target=self._keep, args=(on_lost,), name="leader", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop waiting or renewing, and release the lease so that the next leader need not wait."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._terms.deadline)
        if self.is_leader:
            self.is_leader = False
            self._release()

    def _keep(self, on_lost: Callable[[], None]) -> None:
        renewed = self._clock()
        while not self._stop.wait(self._terms.period):
            asked = self._clock()
            if self._try_once():
                renewed = asked
            elif self._clock() - renewed > self._terms.deadline or self._held_by_another():
                self.is_leader = False
                on_lost()
                return

    def _try_once(self) -> bool:
        """Create, take over or renew the lease; False if another holds it or the call failed."""
        try:
            lease = self._cluster.get(LEASE, self._namespace, self._name)
            if lease is None:
                self._cluster.create(LEASE, self._namespace, self._new_lease())
                return True
            self._observe(lease["spec"])
            if self._held_by_another() and not self._expired(lease["spec"]):
                return False
            self._cluster.replace(LEASE, self._namespace, self._name, self._renewed(lease))
            self._seen = (self._identity,)
        except Conflict:
            return False
        except ClusterError as error:
            logger.warning("Lease %s/%s: %s", self._namespace, self._name, error)
            return False
        return True

    def _observe(self, spec: Lease) -> None:
        seen = (spec.get("holderIdentity") or "", spec.get("renewTime"), spec.get("acquireTime"))
        if seen != self._seen:
            self._seen = seen
            self._seen_at = self._clock()

    def _held_by_another(self) -> bool:
        return bool(self._seen and self._seen[0] not in ("", self._identity))

    def _expired(self, spec: Lease) -> bool:
        seconds = spec.get("leaseDurationSeconds") or self._terms.lease
        return self._clock() - self._seen_at > float(seconds)

    def _new_lease(self) -> Lease:
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec(_now(), transitions=0),
        }

    def _renewed(self, lease: Lease) -> Lease:
        """The lease as read, with its resourceVersion: of two candidates one gets a conflict."""
        spec = lease["spec"]
        if spec.get("holderIdentity") == self._identity:
            kept = self._spec(spec.get("acquireTime") or _now(), spec.get("leaseTransitions") or 0)
        else:
            kept = self._spec(_now(), (spec.get("leaseTransitions") or 0) + 1)
        return {**lease, "spec": kept}

    def _spec(self, acquired: str, transitions: int) -> Lease:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._terms.lease)),
            "acquireTime": acquired,
            "renewTime": _now(),
            "leaseTransitions": transitions,
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


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
