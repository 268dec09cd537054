"""JSON that others wrote. Python's own reader, like most, keeps the last of two values of one key without a word."""

import json
from collections import Counter
from typing import Any


class RepeatedKey(ValueError):
    """An object has a key twice; the message names it."""


def read_json(text: str | bytes) -> Any:
    """What JSON says. Raises ValueError for what is not JSON, RepeatedKey among these, and RecursionError."""
    return json.loads(text, object_pairs_hook=_once)


def why_unread(error: Exception) -> str:
    """What `read_json` raised, in words about the text."""
    if isinstance(error, RecursionError):
        return "its brackets are nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    # Python reads whole numbers of at most 4,300 digits.
    return "a number has too many digits" if "set_int_max_str_digits" in str(error) else str(error)


def kind_of(value: Any) -> str:
    """What JSON calls a value."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    kinds = {int | float: "a number", str: "text", list: "a list", dict: "an object"}
    found = (name for kind, name in kinds.items() if isinstance(value, kind))
    return next(found, "a value of another kind")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise RepeatedKey(f"the key {twice[:80]!r} is there twice: keep one of them")
    return found
