"""The client's own limit on requests, and the pauses that the server asks for: one for all threads."""

import threading
import time
from collections.abc import Callable

DEFAULT_PAUSE_SECONDS = 1.0
"""For a refusal for overload that does not say how long to stay away."""
LONGEST_PAUSE_SECONDS = 60.0


class RateLimit:
    """A token bucket: `burst` requests at once, then `per_second`; 0: no limit. Thread-safe."""

    def __init__(
        self,
        per_second: float = 0.0,
        burst: int = 1,
        *,
        longest_pause: float = LONGEST_PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """The server may ask for pauses of `longest_pause` seconds at most."""
        self._interval = 1 / per_second if per_second else 0.0
        self._spread = self._interval * (burst - 1)
        self._longest_pause = longest_pause
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._full_at = 0.0
        """When the bucket will be full again."""
        self._paused_until = 0.0

    def wait(self, deadline: float) -> bool:
        """Wait for a turn; False, at once, if it would not come before `deadline`."""
        with self._lock:
            now = self._clock()
            due = max(now, self._paused_until, self._full_at - self._spread)
            if due > deadline:
                return False
            self._full_at = max(self._full_at, due) + self._interval
        while (seconds := due - self._clock()) > 0:
            self._sleep(seconds)
            # Another thread may have been told meanwhile to stay away for longer.
            with self._lock:
                due = max(due, self._paused_until)
            if due > deadline:
                return False
        return True

    def pause(self, retry_after: str | None) -> None:
        """The server refused for overload: nobody sends anything for as long as its header says."""
        seconds = min(_seconds(retry_after), self._longest_pause)
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)


def _seconds(retry_after: str | None) -> float:
    """Seconds of a Retry-After header. Its other form, a date, is of a clock that need not be ours."""
    if retry_after is None or not retry_after.strip().isdecimal():
        return DEFAULT_PAUSE_SECONDS
    return float(retry_after)
