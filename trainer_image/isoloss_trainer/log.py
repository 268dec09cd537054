"""Logs: JSON lines, and on a terminal a progress bar."""

from __future__ import annotations

import json
import sys
import time
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO


class Log:
    """Writes events to `stream`, and progress at most every `seconds`."""

    def __init__(self, stream: TextIO | None = None, *, seconds: float = 5.0) -> None:
        self._stream = stream or sys.stdout
        self._seconds = seconds
        self._due = 0.0
        self._terminal = self._stream.isatty()

    def event(self, event: str, **facts: Any) -> None:
        """One JSON line."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        if self._terminal:
            self._stream.write("\r\x1b[K")
        self._stream.write(json.dumps({**line, **facts}, default=str) + "\n")
        self._stream.flush()

    def progress(self, event: str, done: float, wanted: float, **facts: Any) -> None:
        """Progress: a bar on a terminal, else a JSON line every few seconds."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (0.2 if self._terminal else self._seconds)
        if not self._terminal:
            self.event(event, done=done, wanted=wanted, **facts)
            return
        share = min(1.0, done / wanted) if wanted else 1.0
        bar = "#" * round(30 * share)
        details = "  ".join(f"{name} {_short(value)}" for name, value in facts.items())
        self._stream.write(f"\r\x1b[K{event} [{bar:<30}] {share:6.1%}  {details}")
        self._stream.flush()

    def failure(self, error: BaseException) -> None:
        """A bug's traceback, as one JSON line."""
        self.event("failure", traceback="".join(traceback.format_exception(error)))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
