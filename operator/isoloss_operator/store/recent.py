"""A bounded cache."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

CacheKey = TypeVar("CacheKey", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[CacheKey, Value]):
    """A thread-safe mapping that drops the least recently used value."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._values: OrderedDict[CacheKey, tuple[float, Value]] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: CacheKey, max_age_seconds: float = math.inf) -> Value | None:
        """The value, now the most recently used; None if it is not kept, or was put so long ago."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            at, value = self._values[key]
            return value if self._clock() - at < max_age_seconds else None

    def get_or_make(self, key: CacheKey, make: Callable[[], Value]) -> Value:
        """The value, made if it is not kept. All keys wait meanwhile: `make` must be quick."""
        with self._lock:
            value = self.get(key)
            if value is None:
                value = make()
                self.put(key, value)
            return value

    def put(self, key: CacheKey, value: Value) -> None:
        """Keep a value."""
        with self._lock:
            self._values[key] = (self._clock(), value)
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)

    def drop(self, key: CacheKey) -> None:
        """Forget a value; nothing happens if it is not kept."""
        with self._lock:
            self._values.pop(key, None)
