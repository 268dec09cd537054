"""A sweep as it lies in the store, for the command line: its ledger, its runs, its laws.

The operator reads the same records by their keys; here they are found from a URI that a person types.
Everything read is untrusted and parsed strictly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from isoloss.laws import Run
from isoloss.runs import BadTrajectory, Weights, run_from_point
from isoloss_contract import layout
from isoloss_contract.ledger import DONE, Ledger, PointRecord, PointState
from isoloss_contract.records import (
    DataManifest,
    PointConfig,
    PointResult,
    TrajectoryRow,
)
from isoloss_contract.store import BadStoreUri, NotFound, Store, StoreError, parse_record_lines

SWEEPS = "sweeps"
LEDGER = "ledger.json"
MAX_LAWS_BYTES = 64 * 2**20


class BadSweep(ValueError):
    """A sweep's URI or what lies behind it can not be used; the message names the URI."""


@dataclass(frozen=True)
class StoredSweep:
    """One sweep's folder with its ledger."""

    store: Store
    folder: str
    """Under sweeps/: name-uid."""
    ledger: Ledger

    @property
    def uri(self) -> str:
        """The folder's full URI."""
        return self.store.location(f"{SWEEPS}/{self.folder}")


@dataclass(frozen=True)
class SweepRuns:
    """The runs of a sweep's points, and what took no part."""

    runs: tuple[Run, ...]
    warnings: tuple[str, ...]


def is_sweep_uri(source: str) -> bool:
    """Whether an argument names something in the store rather than a local file."""
    return "://" in source


def open_sweep(uri: str) -> StoredSweep:
    """The sweep behind STORAGE/sweeps/NAME-UID, STORAGE/sweeps/NAME or STORAGE with one sweep in it.

    Raises BadSweep where there is none, or more than one.
    """
    head, separator, name = uri.rstrip("/").rpartition(f"/{SWEEPS}/")
    storage, wanted = (head, name) if separator else (uri.rstrip("/"), "")
    if "/" in wanted:
        raise BadSweep(f"{uri}: give STORAGE/{SWEEPS}/NAME, not a file inside it")
    try:
        store = Store(storage)
        exact = _ledger(store, wanted) if wanted else None
        if exact is not None:
            return StoredSweep(store, wanted, exact)
        return _only_sweep(uri, _sweeps_named(store, wanted))
    except (BadStoreUri, StoreError) as error:
        raise BadSweep(str(error)) from error


def _sweeps_named(store: Store, wanted: str) -> list[StoredSweep]:
    folders = [name for name in store.names(SWEEPS) if name.startswith(wanted)]
    ledgers = [(folder, _ledger(store, folder)) for folder in folders]
    return [
        StoredSweep(store, folder, ledger)
        for folder, ledger in ledgers
        if ledger is not None and wanted in ("", ledger.sweep)
    ]


def _ledger(store: Store, folder: str) -> Ledger | None:
    try:
        return store.read_record(f"{SWEEPS}/{folder}/{LEDGER}", Ledger)
    except NotFound:
        return None


def _only_sweep(uri: str, found: list[StoredSweep]) -> StoredSweep:
    if not found:
        raise BadSweep(f"{uri}: no sweep there (looked for {SWEEPS}/NAME-UID/{LEDGER})")
    if len(found) > 1:
        names = ", ".join(f"{SWEEPS}/{sweep.folder}" for sweep in found[:10])
        raise BadSweep(f"{uri}: several sweeps there, name one of {names}")
    return found[0]


def laws_document(sweep: StoredSweep) -> str:
    """The text of the sweep's laws.json. Raises BadSweep where it is not there yet."""
    try:
        return sweep.store.read(
            f"{SWEEPS}/{sweep.folder}/laws.json", max_bytes=MAX_LAWS_BYTES
        ).decode()
    except NotFound as error:
        raise BadSweep(
            f"{sweep.uri}: no laws yet; isoloss fit makes them from its runs"
        ) from error
    except (StoreError, UnicodeDecodeError) as error:
        raise BadSweep(f"{sweep.uri}: laws.json: {error}") from error


def sweep_runs(sweep: StoredSweep, weights: Weights = "averaged") -> SweepRuns:
    """Every point that has a trajectory as a run; unfinished ones are marked so. Raises BadSweep."""
    counts = _known_counts(sweep)
    tokenizer = _tokenizer(sweep)
    runs: list[Run] = []
    warnings: list[str] = []
    for point in sweep.ledger.points:
        answer = _point_run(sweep, point, counts, tokenizer, weights)
        if isinstance(answer, Run):
            runs.append(answer)
        else:
            warnings.append(f"{point.name}: {answer}")
    return SweepRuns(tuple(runs), tuple(warnings))


def _known_counts(sweep: StoredSweep) -> Mapping[str, PointResult]:
    """A finished point of each proxy: it tells the parameters of those that still train."""
    paths = {
        layout.point_result(point.key): point
        for point in sweep.ledger.points
        if point.state in DONE
    }
    known: dict[str, PointResult] = {}
    for path, result in sweep.store.read_many(paths, PointResult).items():
        if isinstance(result, StoreError):
            raise BadSweep(str(result))
        if result.key != paths[path].key:
            raise BadSweep(f"{sweep.store.location(path)}: is the result of another point")
        known[paths[path].proxy] = result
        known[paths[path].key] = result
    return known


def _tokenizer(sweep: StoredSweep) -> str | None:
    if not sweep.ledger.prepare_key:
        return None
    path = layout.data_manifest(sweep.ledger.prepare_key)
    try:
        return sweep.store.read_record(path, DataManifest).tokenizer_digest
    except NotFound:
        return None
    except StoreError as error:
        raise BadSweep(str(error)) from error


def _point_run(
    sweep: StoredSweep,
    point: PointRecord,
    known: Mapping[str, PointResult],
    tokenizer: str | None,
    weights: Weights,
) -> Run | str:
    """The point's run, or in words why it has none."""
    result = known.get(point.key)
    like = result or known.get(point.proxy)
    if point.state is PointState.OUT_OF_MEMORY:
        return "ran out of memory"
    if like is None:
        return "not finished, and no finished point of its size tells the parameters"
    try:
        config = sweep.store.read_record(layout.point_config(point.key), PointConfig)
        rows = _trajectory(sweep, point, result)
        return run_from_point(
            point.name,
            config,
            like.parameters,
            rows,
            weights=weights,
            bytes_per_token=like.bytes_per_token,
            diverged=point.state is PointState.DIVERGED,
            finished=result is not None,
            tokenizer=tokenizer,
        )
    except NotFound:
        if result is not None:
            raise BadSweep(f"{sweep.uri}: {point.name}: its trajectory is missing") from None
        return "not started"
    except (StoreError, BadTrajectory) as error:
        raise BadSweep(str(error)) from error


def _trajectory(
    sweep: StoredSweep, point: PointRecord, result: PointResult | None
) -> list[TrajectoryRow]:
    path = layout.point_trajectory(point.key)
    content = sweep.store.read(path)
    source = sweep.store.location(path)
    if result is not None and hashlib.sha256(content).hexdigest() != result.trajectory_sha256:
        raise BadSweep(f"{source}: does not match the digest in its result: changed or truncated")
    return parse_record_lines(content, TrajectoryRow, source)
