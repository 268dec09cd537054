"""A sweep in the store, found by the URI that a person types: its ledger, runs and laws.

The operator reads the same records by their keys. Everything read is untrusted and parsed strictly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from isoloss.errors import BadInput
from isoloss.laws import BadLaws, Laws, Run, laws_from_json
from isoloss.runs import BadTrajectory, RunSet, Weights, run_from_point, stopped_in_words
from isoloss_contract import layout, records
from isoloss_contract.json_text import read_json
from isoloss_contract.ledger import DONE, Ledger, PointRecord, PointState
from isoloss_contract.ledger_files import read_ledger
from isoloss_contract.store import (
    BadRecord,
    BadStoreUri,
    NotFound,
    Store,
    StoreError,
    parse_record_lines,
)
from isoloss_contract.trajectories import MAX_TRAJECTORY_BYTES, read_finished

MAX_LAWS_BYTES = 64 * 2**20
CHANGED = "it was changed after it was written: restore it, or train the point anew"
UID = len("-01234567-89ab-cdef-0123-456789abcdef")
"""Of what follows a sweep's name in that of its folder."""


class BadSweep(BadInput):
    """A sweep's URI, or a record behind it, cannot be used; the message names the URI."""


@dataclass(frozen=True)
class StoredSweep:
    """One sweep's folder with its ledger."""

    store: Store
    folder: str
    """sweeps/NAME-UID"""
    ledger: Ledger

    @property
    def uri(self) -> str:
        """The folder's full URI."""
        return self.store.location(self.folder)


def is_sweep_uri(source: str) -> bool:
    """Whether an argument names something in the store rather than a local file."""
    return "://" in source


def open_sweep(uri: str) -> StoredSweep:
    """The sweep at STORAGE/sweeps/NAME-UID, STORAGE/sweeps/NAME, or STORAGE if it holds one sweep.

    Raises BadSweep if there is none or more than one, or if the extra `store` is not installed.
    """
    head, separator, name = uri.rstrip("/").rpartition(f"/{layout.SWEEPS}/")
    # In s3://sweeps/x the bucket is called sweeps.
    is_folder = bool(separator) and not head.endswith(":/")
    storage, wanted = (head, name) if is_folder else (uri.rstrip("/"), "")
    if "/" in wanted:
        raise BadSweep(f"{uri}: give STORAGE/{layout.SWEEPS}/NAME, not a file inside it")
    try:
        store = Store(storage)
        exact = _sweep(store, wanted) if wanted else None
        return exact or _only_sweep(uri, _sweeps_named(store, wanted))
    except (BadStoreUri, StoreError) as error:
        raise BadSweep(str(error)) from error


def _sweeps_named(store: Store, wanted: str) -> list[StoredSweep]:
    """Sweeps of that name; all of them for an empty one. Others are not read: one of them may be damaged, or newer."""
    names = store.names(layout.SWEEPS)
    if wanted:
        names = [n for n in names if n.startswith(f"{wanted}-") and len(n) == len(wanted) + UID]
    found = [sweep for name in names if (sweep := _sweep(store, name)) is not None]
    return [sweep for sweep in found if wanted in ("", sweep.ledger.sweep)]


def _sweep(store: Store, name: str) -> StoredSweep | None:
    folder = f"{layout.SWEEPS}/{name}"
    try:
        return StoredSweep(store, folder, read_ledger(store, folder))
    except NotFound:
        return None


def _only_sweep(uri: str, found: list[StoredSweep]) -> StoredSweep:
    if not found:
        raise BadSweep(
            f"{uri}: no sweep there (looked for {layout.ledger_in(f'{layout.SWEEPS}/NAME-UID')}): give a sweep's "
            "spec.storage.uri, or the folder NAME-UID below it"
        )
    if len(found) > 1:
        names = ", ".join(sweep.folder for sweep in found[:10])
        raise BadSweep(f"{uri}: several sweeps there, name one of {names}")
    return found[0]


def stored_laws(sweep: StoredSweep) -> Laws:
    """The sweep's laws. Raises StoreError: NotFound if there are none yet."""
    path = layout.laws_in(sweep.folder)
    content = sweep.store.read(path, max_bytes=MAX_LAWS_BYTES)
    try:
        return laws_from_json(read_json(content))
    except (ValueError, BadLaws, RecursionError) as error:
        raise BadRecord(f"{sweep.store.location(path)}: {error}"[:400]) from error


def sweep_runs(sweep: StoredSweep, weights: Weights = "averaged") -> RunSet:
    """Every point with a trajectory as a run, finished or not; a warning for each without one. Raises BadSweep."""
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
    return RunSet(tuple(runs), tuple(warnings))


def _known_counts(sweep: StoredSweep) -> Mapping[str, records.PointResult]:
    """Results by point key, and one by proxy: it gives the parameters of points still training. Raises BadSweep, also for points
    of one size that have other parameters than one another: a result has no digest."""
    paths = {
        layout.point_result(point.key): point
        for point in sweep.ledger.points
        if point.state in DONE
    }
    known: dict[str, records.PointResult] = {}
    for path, result in sweep.store.read_many(paths, records.PointResult).items():
        if isinstance(result, StoreError):
            raise BadSweep(str(result))
        if result.key != paths[path].key:
            raise BadSweep(f"{sweep.store.location(path)}: the result of another point")
        same_size = known.setdefault(paths[path].proxy, result)
        if result.parameters != same_size.parameters:
            other = sweep.store.location(layout.point_result(same_size.key))
            raise BadSweep(
                f"{sweep.store.location(path)}: parameters: are not those of {other}, a point of the same size: {CHANGED}"
            )
        known[paths[path].key] = result
    return known


def _tokenizer(sweep: StoredSweep) -> str | None:
    if (corpus := sweep.ledger.corpus) is not None:
        return corpus.tokenizer_digest
    if not sweep.ledger.prepare_key:
        return None
    path = layout.data_manifest(sweep.ledger.prepare_key)
    try:
        return sweep.store.read_record(path, records.DataManifest).tokenizer_digest
    except NotFound:
        return None
    except StoreError as error:
        raise BadSweep(str(error)) from error


def _point_run(
    sweep: StoredSweep,
    point: PointRecord,
    known: Mapping[str, records.PointResult],
    tokenizer: str | None,
    weights: Weights,
) -> Run | str:
    """The point's run, or why it has none."""
    result = known.get(point.key)
    same_size = result or known.get(point.proxy)
    if point.state is PointState.OUT_OF_MEMORY:
        return "ran out of memory"
    if same_size is None:
        return "not finished, and no finished point of its size gives the parameter counts"
    try:
        config = _config(sweep.store, point.key)
        # If it finished, what its ledger names, whatever longer runs followed.
        digest = (point.trajectory_sha256 or result.trajectory_sha256) if result else ""
        rows = trajectory(sweep.store, point.key, digest)
        return run_from_point(
            point.name,
            config,
            same_size.parameters,
            rows,
            weights=weights,
            bytes_per_token=same_size.bytes_per_token,
            diverged=point.state is PointState.DIVERGED,
            finished=result is not None and point.is_finished,
            stopped=stopped_in_words(point),
            tokenizer=tokenizer,
        )
    except NotFound:
        if result is not None:
            raise BadSweep(f"{sweep.uri}: {point.name}: trajectory missing") from None
        return "not started"
    except (StoreError, BadTrajectory) as error:
        raise BadSweep(str(error)) from error


def _config(store: Store, key: str) -> records.PointConfig:
    """The settings of a point, whose digest is its name. Raises StoreError."""
    path = layout.point_config(key)
    config = store.read_record(path, records.PointConfig)
    if config.key != key:
        raise BadRecord(
            f"{store.location(path)}: is not the configuration that its folder is named by: {CHANGED}"
        )
    return config


def trajectory(store: Store, key: str, digest: str) -> list[records.TrajectoryRow]:
    """Evaluations of a point with this digest; without one those of the run so far."""
    if digest:
        return read_finished(store, key, digest)
    path = layout.point_trajectory(key)
    content = store.read(path, max_bytes=MAX_TRAJECTORY_BYTES)
    return parse_record_lines(content, records.TrajectoryRow, store.location(path))
