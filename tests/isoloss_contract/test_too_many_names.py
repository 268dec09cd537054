"""A folder with more names than any folder of ours has is refused, in every kind of store, before all are read."""

import pytest

from isoloss_contract.store import BadRecord, backend
from tests.isoloss_contract.conftest import OpenStore


def test_a_folder_with_too_many_names_is_refused(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    monkeypatch.setattr(backend, "MAX_NAMES", 3)
    for number in range(3):
        store.write(f"points/{number}", b"")
    assert len(store.names("points")) == 3
    store.write("points/3", b"")
    with pytest.raises(BadRecord, match="points: more than 3 names"):
        store.names("points")
