"""What came of reading something from the store: the value, or which kind of absence it is.

Each absence calls for its own reaction. What is absent may be made; what is unreadable is quarantined first;
what a newer version wrote is left alone; while the store does not answer nothing may be concluded at all.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeGuard, TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True)
class Absent:
    """Nothing is there."""


ABSENT: Final = Absent()


@dataclass(frozen=True)
class Unreadable:
    """Something is there that cannot be used: truncated, or tampered with."""

    message: str


@dataclass(frozen=True)
class Newer:
    """Something is there that a newer isoloss wrote in a format this one does not know: leave it alone."""

    message: str


@dataclass(frozen=True)
class Unanswered:
    """The store could not be asked."""

    message: str
    alone: bool = False
    """The store answers otherwise: it is this object that it does not give out."""


Read = Union[T, Absent, Unreadable, Newer, Unanswered]  # noqa: UP007  a generic alias needs Union


def value_of(read: Read[T]) -> T | None:
    """The value; None if there is none, for whichever reason."""
    return None if isinstance(read, Absent | Unreadable | Newer | Unanswered) else read


def problem_of(read: Read[T]) -> str:
    """Why what may be there cannot be used; empty for a value, and if nothing is there."""
    return read.message if isinstance(read, Unreadable | Newer | Unanswered) else ""


def is_unknown(read: Read[T]) -> TypeGuard[Newer | Unanswered]:
    """Whether nothing may be concluded: neither that something is there nor that it is missing."""
    return isinstance(read, Newer | Unanswered)


def parse_timestamp(text: str) -> datetime | None:
    """The moment behind an RFC 3339 text, in UTC if that names no zone; None if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC to the second, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
