"""What came of a call to the store, as a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from isoloss_contract.reading import ABSENT, Newer, Read, Unanswered, Unreadable
from isoloss_contract.store import BadRecord, NewerRecord, NotFound, StoreError

Value = TypeVar("Value")


def read_of(call: Callable[[], Value]) -> Read[Value]:
    """What came of a call that raises StoreError."""
    try:
        return call()
    except NotFound:
        return ABSENT
    except BadRecord as error:
        return Unreadable(str(error))
    except NewerRecord as error:
        return Newer(str(error))
    except StoreError as error:
        return Unanswered(str(error))
