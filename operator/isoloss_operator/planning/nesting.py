"""How deeply a manifest may be nested: what walks it later, ours and pydantic's, does so by recursion."""

from __future__ import annotations

from typing import Any, Final

MAX_DEPTH: Final = 100
"""Objects and lists within one another. A pod template of Kubernetes' own types has fewer than thirty."""


def too_deep(value: Any) -> str:
    """Why a value as JSON cannot be used; empty: it is not nested too deeply. Walks it without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return ""
    return f"is nested more than {MAX_DEPTH} levels deep: a pod template, model or value in it cannot be meant"


def _children(value: Any) -> list[Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in found if isinstance(child, dict | list)]
