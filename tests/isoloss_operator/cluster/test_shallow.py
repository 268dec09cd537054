"""JSON of any depth is cut down to what a parser takes, and everything else is left as it is."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from isoloss_operator.cluster.shallow import KEPT_DEPTH, shallow

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
)


def nested(depth: int, inner: str = "1") -> str:
    return '{"a":' * depth + inner + "}" * depth


@given(VALUES)
def test_what_is_not_deep_is_left_as_it_is(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert shallow(text.encode()) == text.encode()


def test_brackets_and_quotes_in_strings_are_no_levels() -> None:
    text = json.dumps(["{[" * 500, '\\"{' * 500, "}" * 500]).encode()
    assert shallow(text) == text


def test_what_lies_deeper_becomes_null_and_its_neighbours_stay() -> None:
    assert shallow(nested(KEPT_DEPTH).encode()) == nested(KEPT_DEPTH).encode()
    assert shallow(nested(KEPT_DEPTH + 1).encode()).decode() == nested(KEPT_DEPTH, "null")
    deep = f'{{"x": {nested(20_000)}, "y": [{nested(20_000)}, 7], "z": "}}"}}'
    found = json.loads(shallow(deep.encode()))
    assert found["y"][1] == 7
    assert found["z"] == "}"
