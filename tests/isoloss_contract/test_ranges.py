"""Parts of an object, in every kind of store."""

from __future__ import annotations

import pytest

from isoloss_contract.store import BadRecord, NotFound
from tests.isoloss_contract.conftest import OpenStore


def test_a_range_is_those_bytes_and_no_others(open_store: OpenStore) -> None:
    store = open_store()
    content = bytes(range(256)) * 8
    store.write("folder/x.bin", content)
    for start, size in ((0, 1), (5, 300), (len(content) - 7, 7), (0, len(content))):
        assert store.read_range("folder/x.bin", start, size) == content[start : start + size]


@pytest.mark.parametrize("start", [90, 100, 5000], ids=["partly", "at the end", "far behind it"])
def test_a_range_behind_the_end_is_damage_that_names_the_object(
    open_store: OpenStore, start: int
) -> None:
    store = open_store()
    store.write("x.bin", bytes(100))
    with pytest.raises(BadRecord, match=r"x\.bin: ends before byte"):
        store.read_range("x.bin", start, 20)


def test_a_range_of_nothing_is_not_found(open_store: OpenStore) -> None:
    with pytest.raises(NotFound):
        open_store().read_range("absent.bin", 0, 4)
