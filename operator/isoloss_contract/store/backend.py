"""What a kind of storage must be able to do for `Store`.

A backend tries once. It raises FileNotFoundError if nothing is there, Unusable, Changed, Refused, and
any other exception if the storage did not do what was asked. `Store` retries and names the URI.
"""

from dataclasses import dataclass
from typing import Protocol

from isoloss_contract.store.errors import Unusable

MAX_NAMES = 200_000
"""In one folder of the store. The largest has a name for each point of every sweep."""


@dataclass(frozen=True)
class Patience:
    """How long a store is waited for."""

    attempts: int = 8
    """Tries of one call, with growing pauses between them."""
    longest_pause_seconds: float = 8.0
    retry_timeouts: bool = True
    """Whether a call that timed out is tried again, which may take as long once more."""
    connect_seconds: float = 10.0
    silence_seconds: float = 60.0
    """A connection that brings no byte for this long has failed."""
    attempt_seconds: float = 3600.0
    """Duration of one try at most, however steadily bytes arrive."""


class Backend(Protocol):
    """One folder in one kind of storage. Thread-safe; paths are relative to the folder."""

    def read(self, path: str, max_bytes: int) -> tuple[bytes, str]:
        """Content and version. Raises Unusable if it is longer than `max_bytes`."""

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """`size` bytes from `start`; fewer, or none, if the object ends before."""

    def write(self, path: str, content: bytes) -> None:
        """Replace the object atomically, or make it."""

    def write_if(self, path: str, content: bytes, version: str | None, mark: str) -> str:
        """Replace the object if it still has that version; for None, make it. Its new version.

        If answers can be lost the object keeps `mark`, which no other write has. Raises Changed.
        """

    def version_marked(self, path: str, mark: str) -> str | None:
        """The version of the object if the write with that mark made it."""

    def stamp(self, path: str) -> str:
        """Something that changes whenever the object is replaced, found without reading it."""

    def names(self, path: str) -> list[str]:
        """Names of the objects and folders directly under `path`, in any order."""

    def remove(self, path: str) -> None:
        """Remove an object or folder, or do nothing."""


def check_names(count: int) -> None:
    """Check the number of names found so far in a folder. Raises Unusable if they are more than any folder of ours
    has."""
    if count > MAX_NAMES:
        raise Unusable(f"more than {MAX_NAMES} names")
