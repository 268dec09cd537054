"""Whether a store is asked at all, and until when.

A store that is down answers none of a thousand reads, each after its timeout. After the first it is left
alone for a moment, then asked once; when it answers, everything goes on.

What counts as down is silence, and three errors in a row that are no answer (a refused connection, a
status of 5xx). A status of 4xx is an answer: that object is denied or its key is too long, and the next
one may be read. But it says nothing about other objects, so it does not count as the store giving out
any (`has_answered_since`).

A timeout may also be one object's own fault: a part of the store that lies on a broken disk. It is, if
another call was answered after this one began, and then it is not counted. But who reads the last result
of a sweep makes no other call, and would take the store to be down for ever. So whoever missed a result in
the last pass first asks for an object that nobody makes (`Storage.results`). If that is answered, the
store is trusted: asked again at once, and what is missing is held back alone.

There is one circuit for each store, which is a prefix and not a bucket: what a tenant does wrong in its own
costs its own.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 8.0
FAILURES = 3
"""So many errors in a row, none of them a timeout, and the store is taken to be down."""
PROBE_SECONDS = 120.0
"""After this time a probe is taken to be lost, and another may be made."""

_deadline: ContextVar[float | None] = ContextVar("store deadline", default=None)


class NotAsked(Exception):
    """The store was not asked, for the reason in the message."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """In this context no call to any store begins after `seconds`; an outer limit stays in force."""
    until, outer = time.monotonic() + seconds, _deadline.get()
    token = _deadline.set(until if outer is None else min(until, outer))
    try:
        yield
    finally:
        _deadline.reset(token)


def check_time() -> None:
    """Raises NotAsked if the limit of this context is over."""
    deadline = _deadline.get()
    if deadline is not None and time.monotonic() > deadline:
        raise NotAsked("not asked: the time for reading the store is used up")


def is_timeout(error: BaseException) -> bool:
    """Whether an error means that nothing was heard; the libraries' timeouts share no base class."""
    return any("Timeout" in base.__name__ for base in type(error).__mro__)


class Circuit:
    """What is known of whether one store answers. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answered_at = -1.0
        self._failures = 0
        self._opened_at = -1.0
        self._open_until = -1.0
        self._probe_since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._message = ""

    @contextmanager
    def call(
        self,
        answers: tuple[type[Exception], ...] = (),
        refusals: tuple[type[Exception], ...] = (),
    ) -> Iterator[None]:
        """Around one call. Raises NotAsked while the store is left alone.

        Neither `answers` nor `refusals` are failures; only `answers` show that the store gives out objects.
        """
        began = self._enter()
        try:
            yield
        except answers:
            self.answered()
            raise
        except refusals:
            self._close()
            raise
        except Exception as error:
            self._failed(began, error)
            raise
        self.answered()

    def has_answered_since(self, moment: float) -> bool:
        """Whether any call was answered after `moment` of the clock."""
        with self._lock:
            return self._answered_at >= moment

    def answered(self) -> None:
        """The store answers: it is asked again at once, whatever one object's own fault was."""
        with self._lock:
            self._answered_at = self._clock()
        self._close()

    def _enter(self) -> float:
        with self._lock:
            now = self._clock()
            if not self._message:
                return now
            is_probed = self._probe_since is not None and now - self._probe_since < PROBE_SECONDS
            if now < self._open_until or is_probed:
                raise NotAsked(f"not asked again so soon after: {self._message}")
            self._probe_since = now
            return now

    def _close(self) -> None:
        with self._lock:
            self._failures, self._message, self._probe_since = 0, "", None
            self._pause = FIRST_PAUSE_SECONDS

    def _failed(self, began: float, error: BaseException) -> None:
        with self._lock:
            if began < max(self._answered_at, self._opened_at):
                # Others were answered meanwhile: it is this object. Or the store is known to be down.
                return
            self._failures += 1
            if not self._message and not is_timeout(error) and self._failures < FAILURES:
                return
            now = self._clock()
            self._opened_at, self._open_until = now, now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            self._message, self._probe_since = str(error)[:400] or type(error).__name__, None
