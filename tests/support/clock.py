"""A clock that a test moves."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds, as time.monotonic gives them."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let them pass at once."""
        self.now += seconds
