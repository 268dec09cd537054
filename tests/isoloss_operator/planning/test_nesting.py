"""A manifest of any depth is refused in words, without walking it by recursion."""

from __future__ import annotations

from typing import Any

import pytest

from isoloss_operator.planning.nesting import MAX_DEPTH, too_deep


def nested(depth: int, *, lists: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize("lists", [False, True])
def test_so_many_levels_and_no_more(lists: bool) -> None:
    assert too_deep(nested(MAX_DEPTH, lists=lists)) == ""
    assert "more than 100 levels" in too_deep(nested(MAX_DEPTH + 1, lists=lists))


def test_a_hundred_thousand_levels_are_no_recursion() -> None:
    assert too_deep({"spec": [nested(100_000)]})


@pytest.mark.parametrize("value", [None, "text", 7, {}, []])
def test_what_has_no_levels_is_fine(value: Any) -> None:
    assert too_deep(value) == ""
