"""Trajectories of finished runs: named by their content, so that a longer run changes none of them.

Two sweeps that ask for different numbers of tokens share a point. Each reads the trajectory that its
ledger names.
"""

from __future__ import annotations

import hashlib

from isoloss_contract import layout
from isoloss_contract.records import PointResult, TrajectoryRow
from isoloss_contract.store import BadRecord, NotFound, Store, parse_record_lines

MAX_TRAJECTORY_BYTES = 32 * 2**20


def read_finished(store: Store, key: str, sha256: str) -> list[TrajectoryRow]:
    """The rows of the trajectory with that digest.

    Raises NotFound, StoreUnavailable, or BadRecord where what is stored has another digest.
    """
    path = layout.finished_trajectory(key, sha256)
    try:
        content = store.read(path, max_bytes=MAX_TRAJECTORY_BYTES)
    except NotFound:
        # Written before finished trajectories had names of their own, and not moved since.
        path = layout.point_trajectory(key)
        content = store.read(path, max_bytes=MAX_TRAJECTORY_BYTES)
    source = store.location(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BadRecord(
            f"{source}: does not match the digest that ledger or result names: changed or truncated"
        )
    return parse_record_lines(content, TrajectoryRow, source)


def write_finished(store: Store, key: str, trajectory: bytes) -> None:
    """Keep a trajectory under its digest. Raises StoreUnavailable."""
    store.write(
        layout.finished_trajectory(key, hashlib.sha256(trajectory).hexdigest()), trajectory
    )


def keep_former(store: Store, key: str) -> None:
    """Before a run goes on: move the trajectory of its result, where an older version wrote it in place.

    Raises StoreUnavailable. Does nothing where there is no result or its trajectory is kept already.
    """
    try:
        result = store.read_record(layout.point_result(key), PointResult)
        if store.exists(layout.finished_trajectory(key, result.trajectory_sha256)):
            return
        content = store.read(layout.point_trajectory(key), max_bytes=MAX_TRAJECTORY_BYTES)
    except (NotFound, BadRecord):
        return
    if hashlib.sha256(content).hexdigest() == result.trajectory_sha256:
        write_finished(store, key, content)
