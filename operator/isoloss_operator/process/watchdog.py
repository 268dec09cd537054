"""Detects a watch that is open but delivers nothing, by comparing it with live reads.

A live read returns an object's resourceVersion. If the watch has not delivered that version, the clock starts.
After too long the process is unhealthy, and Kubernetes restarts it.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping


class WatchDog:
    """Compares live reads with what the watches delivered. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._delivered: dict[str, str] = {}
        """Newest resourceVersion delivered, by uid."""
        self._awaited: dict[Hashable, dict[str, float]] = {}
        """Keyed by reader, then uid: since when a delivery is awaited."""

    def delivered(self, uid: str, version: str, *, gone: bool = False) -> None:
        """A watch delivered an object."""
        with self._lock:
            if gone:
                self._delivered.pop(uid, None)
            else:
                self._delivered[uid] = version
            for awaited in self._awaited.values():
                awaited.pop(uid, None)

    def read(self, reader: Hashable, versions: Mapping[str, str]) -> None:
        """A live read by `reader` found exactly these objects: uid to resourceVersion."""
        now = self._clock()
        with self._lock:
            before = self._awaited.get(reader, {})
            self._awaited[reader] = {
                uid: before.get(uid, now)
                for uid, version in versions.items()
                if self._delivered.get(uid) != version
            }

    def forget(self, reader: Hashable) -> None:
        """Drop what is awaited for `reader`."""
        with self._lock:
            self._awaited.pop(reader, None)

    def lag(self) -> float:
        """Seconds since which the oldest awaited delivery is overdue; 0 if none is awaited."""
        with self._lock:
            since = [at for awaited in self._awaited.values() for at in awaited.values()]
        return self._clock() - min(since) if since else 0.0
