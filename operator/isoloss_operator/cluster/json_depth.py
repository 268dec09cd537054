"""JSON of any depth: cut down to what can be parsed, and refused if a manifest is nested too deeply to be used.

A pod template may be nested as deeply as the API server takes it, ten thousand levels, and managedFields repeat that.
Parsers recurse: at a thousand levels, or ten thousand, they raise RecursionError, which must cost that object alone.
"""

import json
import re
from typing import Any, Final

MAX_DEPTH: Final = 100
"""Objects and lists within one another. A pod template of Kubernetes' own types has fewer than thirty."""
KEPT_DEPTH = 2 * MAX_DEPTH
"""More than any object that is used may have, with room for the lists and events around it."""
UNREADABLE: Final = "isoloss.dev/unreadable"
"""Key of an object of which only the upper levels are here: why."""
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def parsed(text: bytes) -> Any:
    """What the JSON says. An object that is nested too deeply has its upper levels, and UNREADABLE. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        found = json.loads(truncated(text))
        why = {UNREADABLE: "is nested too deeply to be read"}
        return {**found, **why} if isinstance(found, dict) else found


def truncated(text: bytes) -> bytes:
    """The same JSON with null in place of what lies deeper than KEPT_DEPTH. Scans it without recursion."""
    parts, kept_from, level = [], 0, 0
    for token in _TOKENS.finditer(text):
        sign = token[0]
        if sign in (b"{", b"["):
            level += 1
            if level == KEPT_DEPTH + 1:
                parts.append(text[kept_from : token.start()])
        elif sign in (b"}", b"]"):
            if level == KEPT_DEPTH + 1:
                kept_from = token.end()
            level -= 1
    return b"null".join([*parts, text[kept_from:]]) if parts else text


def too_deep(value: Any) -> str:
    """Why a value as JSON cannot be used; empty: it is not nested too deeply. Walks it without recursion; what comes later recurses."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return ""
    return f"is nested more than {MAX_DEPTH} levels deep; no valid pod template, model or value is"


def _children(value: Any) -> list[Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in found if isinstance(child, dict | list)]
