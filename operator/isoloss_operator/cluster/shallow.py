"""JSON of any depth, cut down to what can be parsed.

A pod template may be nested as deeply as the API server takes it, ten thousand levels, and managedFields repeat that.
Parsers recurse: at a thousand levels, or ten thousand, they raise RecursionError, which must cost that object alone.
"""

from __future__ import annotations

import re

from isoloss_operator.planning.nesting import MAX_DEPTH

KEPT_DEPTH = 2 * MAX_DEPTH
"""More than any object that is used may have, with room for the lists and events around it."""
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def shallow(text: bytes) -> bytes:
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
