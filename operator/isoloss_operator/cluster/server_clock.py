"""The API server's clock, as the Date of its answers tells it.

All times in objects are the API server's. An operator on a node whose clock is three hours off would
take running pods for old or not begun, and a new leader would read its predecessor's times as the future.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

TOLERANCE: Final = timedelta(seconds=5)
"""An answer's Date has whole seconds and is as old as the answer took to begin: less is no difference."""


class ServerClock:
    """Thread-safe: the one value is replaced as a whole."""

    def __init__(self, here: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._here = here
        self._ahead = timedelta()

    def saw(self, date: str | None, age: float = 0.0) -> None:
        """An answer carries this Date, which came `age` seconds ago. One that cannot be read tells nothing."""
        if date is None:
            return
        try:
            server = parsedate_to_datetime(date)
        except ValueError:
            return
        if server.tzinfo is None:
            return
        ahead = server + timedelta(seconds=age) - self._here()
        self._ahead = ahead if abs(ahead) > TOLERANCE else timedelta()

    def now(self) -> datetime:
        """UTC, aware: this machine's clock if the two agree."""
        return self._here() + self._ahead
