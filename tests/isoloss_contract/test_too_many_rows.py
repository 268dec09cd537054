"""A trajectory that no run wrote: its digest is right, and it is as large as an object may be."""

import hashlib
from pathlib import Path

import pytest

from isoloss_contract import layout
from isoloss_contract.store import BadRecord, Store
from isoloss_contract.trajectories import MAX_ROWS, read_finished

KEY = "0" * 32


def test_a_trajectory_of_more_rows_than_any_run_has_is_refused_before_it_is_parsed(
    tmp_path: Path,
) -> None:
    content = b"\n" * (MAX_ROWS + 1)
    digest = hashlib.sha256(content).hexdigest()
    store = Store(f"file://{tmp_path}")
    store.write(layout.finished_trajectory(KEY, digest), content)
    with pytest.raises(BadRecord, match=rf"{digest}\.jsonl: 10001 rows, more than 10000"):
        read_finished(store, KEY, digest)
