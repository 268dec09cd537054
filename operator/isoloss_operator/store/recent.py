"""A bounded cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

CacheKey = TypeVar("CacheKey", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[CacheKey, Value]):
    """A thread-safe mapping that drops the least recently used value."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[CacheKey, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> Value | None:
        """The value, now the most recently used; None if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: CacheKey, value: Value) -> None:
        """Keep a value."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)

    def drop(self, key: CacheKey) -> None:
        """Forget a value; nothing happens if it is not kept."""
        with self._lock:
            self._values.pop(key, None)
