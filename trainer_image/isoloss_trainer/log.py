"""Logs: JSON lines for machines, with lines in words for people, and on a terminal a progress bar."""

import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TextIO


class Log:
    """Writes events to `stream` unless `events` is False, and progress at most every `seconds`, in words also to `people`."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        seconds: float = 5.0,
        people: TextIO | None = None,
        events: bool = True,
    ) -> None:
        self._stream = stream or sys.stdout
        self._events = events
        self._people = people
        self._seconds = seconds
        self._due = 0.0
        self._terminal = self._stream.isatty()

    def event(self, event: str, **facts: Any) -> None:
        """One JSON line; without events, only the end of a progress bar."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        if self._terminal:
            self._stream.write("\r\x1b[K")
        if not self._events:
            return
        self._stream.write(json.dumps({**line, **facts}, default=str) + "\n")
        self._stream.flush()

    @property
    def is_due(self) -> bool:
        """Whether `progress` would write something now."""
        return time.monotonic() >= self._due

    def progress(
        self, event: str, done: float, wanted: float, *, words: str = "", **facts: Any
    ) -> None:
        """Progress: a bar on a terminal, else a JSON line every few seconds; `words` for people after either."""
        if not self.is_due:
            return
        self._due = time.monotonic() + (0.2 if self._terminal else self._seconds)
        if not self._terminal:
            self.event(event, done=done, wanted=wanted, **facts)
            self._tell(words)
            return
        share = min(1.0, done / wanted) if wanted else 1.0
        bar = "#" * round(30 * share)
        details = words or "  ".join(f"{k} {_short(value)}" for k, value in facts.items())
        self._stream.write(f"\r\x1b[K{event} [{bar:<30}] {share:6.1%}  {details}")
        self._stream.flush()

    def _tell(self, words: str) -> None:
        """A line for people; one that nobody can read any more is no reason to end."""
        if self._people is not None and words:
            with suppress(OSError):
                self._people.write(f"{datetime.now(UTC):%H:%M:%S}  {words}\n")
                self._people.flush()

    @contextmanager
    def survived(self, event: str, **facts: Any) -> Iterator[None]:
        """What fails in the block ends it with an event that says why, and nothing else: the run goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (whatever it is)
            self.event(event, **facts, reason=f"{type(error).__name__}: {error}"[:300])

    def failure(self, error: BaseException) -> None:
        """A bug's traceback, as one JSON line."""
        self.event("failure", traceback="".join(traceback.format_exception(error)))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
