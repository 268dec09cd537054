"""What came of reading something from the store: the value, or which kind of absence it is.

The three absences call for three reactions. What is absent may be made; what is unreadable is set aside
first; while the store does not answer nothing may be concluded at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True)
class Absent:
    """Nothing is there."""


ABSENT: Final = Absent()


@dataclass(frozen=True)
class Unreadable:
    """Something is there that cannot be used: truncated, tampered with or of another version."""

    message: str


@dataclass(frozen=True)
class Unanswered:
    """The store could not be asked."""

    message: str


Read = Union[T, Absent, Unreadable, Unanswered]  # noqa: UP007  a generic alias needs Union


def value_of(read: Read[T]) -> T | None:
    """The value; None where there is none, for whichever reason."""
    return None if isinstance(read, Absent | Unreadable | Unanswered) else read
