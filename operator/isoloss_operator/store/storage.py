"""What the operator reads from and writes to object storage; everything read is parsed strictly.

Per sweep it keeps only what nobody else can change: the ledger that this process wrote and the
manifest, which is content-addressed. Everything else is read again in each pass.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Newer, Read, Unanswered, Unreadable, value_of
from isoloss_contract.records import DataManifest, EvaluationResult, PointProgress, PointResult
from isoloss_contract.store import (
    BadRecord,
    NewerRecord,
    NotFound,
    Store,
    StoreError,
    StoreUnavailable,
    parse_record,
)
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.plans import SetAside
from isoloss_operator.store.fit_files import read_outcome

MAX_PROGRESS_BYTES = 64 * 2**10
MAX_RESULT_BYTES = 2**20
MAX_LEDGER_BYTES = 64 * 2**20
MAX_LAWS_BYTES = 64 * 2**20
MODEL_CONFIG = "config.json"
MODEL_CONFIG_SECONDS = 60.0
"""How long a checkpoint's config.json is kept: it hardly ever changes."""
PROGRESS_SECONDS = 5.0
"""How long progress is kept: trainers write it no more often."""

Record = TypeVar("Record", bound=BaseModel)
CacheKey = TypeVar("CacheKey", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[CacheKey, Value]):
    """A thread-safe mapping that drops the least recently used value."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[CacheKey, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> Value | None:
        """The value, now the most recently used; None where it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: CacheKey, value: Value) -> None:
        """Keep a value."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)

    def drop(self, key: CacheKey) -> None:
        """Forget a value; nothing happens where it is not kept."""
        with self._lock:
            self._values.pop(key, None)


def _read(call: Callable[[], Value]) -> Read[Value]:
    """What came of a call that raises StoreError."""
    try:
        return call()
    except NotFound:
        return ABSENT
    except BadRecord as error:
        return Unreadable(str(error))
    except NewerRecord as error:
        return Newer(str(error))
    except StoreError as error:
        return Unanswered(str(error))


class Storage:
    """All stores that the resources name. Thread-safe. Writes and lists raise StoreError."""

    def __init__(
        self,
        *,
        readers: int = 16,
        on_call: Callable[[str, float, bool], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_call` hears of every read or write: its name, seconds and whether the store answered."""
        self._pool = ThreadPoolExecutor(max_workers=readers, thread_name_prefix="store")
        self._on_call = on_call
        self._clock = clock
        self._stores: Recent[str, Store] = Recent(256)
        self._manifests: Recent[tuple[str, str], DataManifest] = Recent(64)
        self._ledgers: Recent[tuple[str, str], Ledger] = Recent(256)
        self._progress: Recent[tuple[str, str], tuple[float, PointProgress | None]] = Recent(4096)
        self._model_configs: Recent[str, tuple[float, dict[str, Any]]] = Recent(256)
        self._fits: Recent[tuple[str, str, str], FitOutcome] = Recent(16)

    # --------------------------------------------------------------------------------- reading

    def manifest(self, uri: str, path: str) -> Read[DataManifest]:
        """The tokenized corpus."""
        known = self._manifests.get((uri, path))
        if known is not None:
            return known
        found = self._read_record(uri, path, DataManifest, "manifest")
        if isinstance(found, DataManifest):
            self._manifests.put((uri, path), found)
        return found

    def model_config(self, checkpoint: str) -> Read[dict[str, Any]]:
        """A checkpoint's config.json, a minute old at most."""
        kept = self._model_configs.get(checkpoint)
        if kept is not None and self._clock() - kept[0] < MODEL_CONFIG_SECONDS:
            return kept[1]
        store = self._store(checkpoint)
        found = _read(lambda: self._timed("model", lambda: store.read_json_object(MODEL_CONFIG)))
        if isinstance(found, dict):
            self._model_configs.put(checkpoint, (self._clock(), found))
        return found

    def ledger(self, uri: str, path: str) -> Read[Ledger]:
        """A sweep's ledger."""
        known = self._ledgers.get((uri, path))
        if known is not None:
            return known
        found = self._read_record(uri, path, Ledger, "ledger", MAX_LEDGER_BYTES)
        if isinstance(found, Ledger):
            self._ledgers.put((uri, path), found)
        return found

    def point_names(self, uri: str) -> frozenset[str]:
        """Keys of the points that any sweep has started in this store. Raises StoreUnavailable."""
        return frozenset(self._timed("list", lambda: self._store(uri).names(layout.POINTS)))

    def results(self, uri: str, keys: Iterable[str]) -> dict[str, Read[PointResult]]:
        """Results by point key; absent ones are left out."""
        wanted = list(dict.fromkeys(keys))
        down = threading.Event()

        def read_one(key: str) -> Read[PointResult]:
            if down.is_set():
                # One timeout is enough: thousands of them would take hours.
                return Unanswered(f"{uri}: another read has failed")
            path = layout.point_result(key)
            found = self._read_record(uri, path, PointResult, "result", MAX_RESULT_BYTES)
            if isinstance(found, Unanswered):
                down.set()
            return found

        answers = zip(wanted, self._pool.map(read_one, wanted), strict=True)
        return {key: found for key, found in answers if found != ABSENT}

    def progress(self, uri: str, keys: Iterable[str]) -> dict[str, PointProgress]:
        """Progress by point key, a few seconds old at most; missing or unreadable ones are left out."""

        def read_one(key: str) -> PointProgress | None:
            kept = self._progress.get((uri, key))
            if kept is not None and self._clock() - kept[0] < PROGRESS_SECONDS:
                return kept[1]
            path = layout.point_progress(key)
            found = self._read_record(uri, path, PointProgress, "progress", MAX_PROGRESS_BYTES)
            if isinstance(found, Unanswered):
                return None
            progress = value_of(found)
            if progress is not None and progress.key != key:
                progress = None
            self._progress.put((uri, key), (self._clock(), progress))
            return progress

        wanted = list(dict.fromkeys(keys))
        answers = zip(wanted, self._pool.map(read_one, wanted), strict=True)
        return {key: found for key, found in answers if found is not None}

    def evaluation(self, uri: str, path: str) -> Read[EvaluationResult]:
        """A checkpoint's initial loss."""
        return self._read_record(uri, path, EvaluationResult, "evaluation", MAX_RESULT_BYTES)

    def fit_outcome(self, uri: str, laws_path: str, known_sha256: str = "") -> Read[FitOutcome]:
        """What the newest fit left. Laws of a digest that is known already are read only once."""
        kept = self._fits.get((uri, laws_path, known_sha256)) if known_sha256 else None
        if kept is not None:
            return kept
        store = self._store(uri)

        def read(path: str) -> bytes | None:
            try:
                return self._timed("laws", lambda: store.read(path, max_bytes=MAX_LAWS_BYTES))
            except NotFound:
                return None

        outcome = _read(lambda: read_outcome(read, laws_path) or ABSENT)
        if isinstance(outcome, FitOutcome) and outcome.laws is not None:
            self._fits.put((uri, laws_path, outcome.laws_sha256), outcome)
        return outcome

    # --------------------------------------------------------------------------------- writing

    def write_ledger(self, uri: str, path: str, ledger: Ledger) -> None:
        """Write the ledger whole. Raises StoreUnavailable; what the store then holds is unknown."""
        self._ledgers.drop((uri, path))
        self._write("ledger", uri, path, ledger.document())
        self._ledgers.put((uri, path), ledger)

    def check_writable(self, uri: str, path: str) -> None:
        """Find out whether the store takes writes, by an empty object. Raises StoreUnavailable."""
        self._write("probe", uri, path, b"")
        self._timed("probe", lambda: self._store(uri).remove(path))

    def set_aside(self, uri: str, request: SetAside) -> None:
        """Copy an unusable object to another name and remove it; does nothing where it is gone."""
        store = self._store(uri)
        try:
            content = self._timed("set-aside", lambda: store.read(request.path))
        except NotFound:
            return
        except BadRecord:
            content = b"larger than any record of isoloss; not kept\n"
        self._write("set-aside", uri, request.aside, content)
        self._timed("set-aside", lambda: store.remove(request.path))

    def forget(self, uri: str, path: str) -> None:
        """Read the ledger again next time: its sweep is gone, or another operator may have written it."""
        self._ledgers.drop((uri, path))

    # ------------------------------------------------------------------------------------- calls

    def _store(self, uri: str) -> Store:
        store = self._stores.get(uri)
        if store is None:
            # The library retries by itself, and so does the pass: more would only delay the report.
            store = Store(uri, attempts=1)
            self._stores.put(uri, store)
        return store

    def _read_record(
        self,
        uri: str,
        path: str,
        model: type[Record],
        name: str,
        max_bytes: int = MAX_LEDGER_BYTES,
    ) -> Read[Record]:
        store = self._store(uri)

        def read() -> Record:
            content = self._timed(name, lambda: store.read(path, max_bytes=max_bytes))
            return parse_record(content, model, store.location(path))

        return _read(read)

    def _write(self, name: str, uri: str, path: str, content: bytes) -> None:
        try:
            self._timed(name, lambda: self._store(uri).write(path, content))
        except NotFound as error:
            # A missing bucket: only a write can distinguish it from a missing object.
            raise StoreUnavailable(f"{uri}: no such bucket or folder") from error

    def _timed(self, name: str, call: Callable[[], Value]) -> Value:
        started = time.monotonic()
        answered = False
        try:
            value = call()
            answered = True
        except (NotFound, BadRecord):
            answered = True
            raise
        finally:
            self._on_call(name, time.monotonic() - started, answered)
        return value

    def close(self) -> None:
        """Start no further reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
