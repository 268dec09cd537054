"""Values that several resources ask the store for and one call answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from isoloss_operator.store.recent import Recent

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Shared(Generic[Key, Value]):
    """Keeps each value for a while. Whoever asks while it is being read waits for that reading."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._values: Recent[Key, tuple[Value]] = Recent(size, clock)
        self._locks: Recent[Key, threading.Lock] = Recent(size)
        self._making = threading.Lock()

    def get(self, key: Key, max_age_seconds: float, read: Callable[[], Value]) -> Value:
        """The value, at most that old. Raises what `read` raises, and keeps nothing then."""
        with self._lock(key):
            kept = self._values.get(key, max_age_seconds)
            if kept is not None:
                return kept[0]
            value = read()
            self._values.put(key, (value,))
            return value

    def _lock(self, key: Key) -> threading.Lock:
        with self._making:
            lock = self._locks.get(key)
            if lock is None:
                lock = threading.Lock()
                self._locks.put(key, lock)
            return lock
