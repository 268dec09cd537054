"""JSON that others wrote. Python's own reader, like most, keeps the last of two values of one key without a word."""

import json
from collections import Counter
from typing import Any


class RepeatedKey(ValueError):
    """An object has a key twice; the message names it."""


def read_json(text: str | bytes) -> Any:
    """What JSON says. Raises ValueError for what is not JSON, RepeatedKey among these, and RecursionError."""
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise RepeatedKey(f"the key {twice[:80]!r} is there twice: keep one of them")
    return found
