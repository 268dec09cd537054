"""Trajectories of finished runs: named by their content, so that a longer run changes none of them.

Two sweeps that ask for different numbers of tokens share a point. Each reads the trajectory that its
ledger names.
"""

import hashlib

from isoloss_contract import layout
from isoloss_contract.records import TrajectoryRow
from isoloss_contract.store import BadRecord, Store, parse_record_lines

MAX_TRAJECTORY_BYTES = 32 * 2**20
MAX_ROWS = 10_000
"""A hundred evaluations for each factor of ten in tokens come to 1,600. Parsed, half a million small rows take more
memory than a fit has."""


def read_finished(
    store: Store, key: str, sha256: str, max_bytes: int = MAX_TRAJECTORY_BYTES
) -> list[TrajectoryRow]:
    """The rows of the trajectory with that digest.

    Raises NotFound, StoreUnavailable, or BadRecord if what is stored has another digest.
    """
    path = layout.finished_trajectory(key, sha256)
    content = store.read(path, max_bytes=max_bytes)
    source = store.location(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BadRecord(
            f"{source}: does not match the digest that ledger or result names: changed or truncated"
        )
    if (rows := content.count(b"\n")) > MAX_ROWS:
        raise BadRecord(f"{source}: {rows} rows, more than {MAX_ROWS}")
    return parse_record_lines(content, TrajectoryRow, source)


def write_finished(store: Store, key: str, trajectory: bytes) -> None:
    """Keep a trajectory under its digest. Raises StoreUnavailable."""
    store.write(
        layout.finished_trajectory(key, hashlib.sha256(trajectory).hexdigest()), trajectory
    )
