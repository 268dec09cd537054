"""SIGTERM and SIGINT set a flag that loops check, so that work stops between two steps and is saved
within the grace period."""

from __future__ import annotations

import signal
from types import FrameType

from isoloss_trainer.termination import Interrupted


class Interruption:
    """Set by SIGTERM or SIGINT. A second SIGINT ends the process at once, as people expect."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> Interruption:
        """Start listening; only the main thread may call this."""
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)
        return self

    def ignore(self) -> None:
        """Ignore SIGTERM from now on: during the interpreter's shutdown it would replace the exit code."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        """Raises Interrupted once a stop was requested."""
        if self.requested:
            raise Interrupted("Interrupted", "stop requested")
