"""JSON of any depth is cut down to what a parser takes, or refused in words; everything else is left as it is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoloss_operator.cluster.json_depth import KEPT_DEPTH, MAX_DEPTH, too_deep, truncated

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
)


def nested(depth: int, inner: str = "1") -> str:
    return '{"a":' * depth + inner + "}" * depth


@given(VALUES)
def test_what_is_not_deep_is_left_as_it_is(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert truncated(text.encode()) == text.encode()


def test_brackets_and_quotes_in_strings_are_no_levels() -> None:
    text = json.dumps(["{[" * 500, '\\"{' * 500, "}" * 500]).encode()
    assert truncated(text) == text


def test_what_lies_deeper_becomes_null_and_its_neighbours_stay() -> None:
    assert truncated(nested(KEPT_DEPTH).encode()) == nested(KEPT_DEPTH).encode()
    assert truncated(nested(KEPT_DEPTH + 1).encode()).decode() == nested(KEPT_DEPTH, "null")
    deep = f'{{"x": {nested(20_000)}, "y": [{nested(20_000)}, 7], "z": "}}"}}'
    found = json.loads(truncated(deep.encode()))
    assert found["y"][1] == 7
    assert found["z"] == "}"


def levels(depth: int, *, lists: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize("lists", [False, True])
def test_so_many_levels_and_no_more(lists: bool) -> None:
    assert too_deep(levels(MAX_DEPTH, lists=lists)) == ""
    assert "more than 100 levels" in too_deep(levels(MAX_DEPTH + 1, lists=lists))


def test_a_hundred_thousand_levels_are_no_recursion() -> None:
    assert too_deep({"spec": [levels(100_000)]})


@pytest.mark.parametrize("value", [None, "text", 7, {}, []])
def test_what_has_no_levels_is_fine(value: Any) -> None:
    assert too_deep(value) == ""
