"""What the operator reads from and writes to object storage; everything read is parsed strictly.

The manifest, which is large, is kept until the store has another; everything else is read again in each pass.
Ledgers have a module of their own, ledgers.py.
"""

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel

from isoloss_contract import layout, reading, records
from isoloss_contract.store import (
    Circuit,
    Patience,
    Store,
    errors,
    limits,
    parse_record,
    time_limit,
)
from isoloss_contract.store.limits import Limit
from isoloss_contract.store.parsing import CONTRACT
from isoloss_contract.trajectories import read_finished
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import Course
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.settings import normal_uri
from isoloss_operator.store import fit_files
from isoloss_operator.store.recent import Recent

MODEL_CONFIG = "config.json"
MODEL_CONFIG_SECONDS = 60.0
"""How long a checkpoint's config.json, and what tells its versions apart, is kept: they hardly ever change."""
WEIGHTS = ".safetensors"
CHECKPOINT_FILES = (WEIGHTS, ".json", ".model")
"""Endings of the files that an initial loss depends on: weights, configuration, tokenizer."""
MAX_CHECKPOINT_FILES = 1000
MAX_COURSE_BYTES = 2**20
"""Of a trajectory that is read in this process: some thousand evaluations."""
MANIFEST_SECONDS = 60.0
"""How long a manifest is believed to be there still: whoever cleans up may remove it, with its corpus."""
CORPUS_SECONDS = 30.0
"""How long it is believed which corpus is a sweep's: a Job's result is waited for a minute, and says it anew."""
PROGRESS_SECONDS = 5.0
"""How long progress is kept: trainers write it no more often."""

RESULTS_SECONDS = 45.0
"""For all results of a pass. What is not read by then is read in the next."""
PROGRESS_SECONDS_FOR_ALL = 10.0
PATIENCE = Patience(
    attempts=3,
    longest_pause_seconds=1.0,
    retry_timeouts=False,
    connect_seconds=5.0,
    silence_seconds=15.0,
    attempt_seconds=60.0,
)
"""The next pass tries again: more patience would only delay the report."""

Record = TypeVar("Record", bound=BaseModel)
Value = TypeVar("Value")
Item = TypeVar("Item")


def read_of(call: Callable[[], Value]) -> reading.Read[Value]:
    """What came of a call that raises StoreError, as a value."""
    try:
        return call()
    except errors.NotFound:
        return reading.ABSENT
    except errors.BadRecord as error:
        return reading.Unreadable(str(error))
    except errors.NewerRecord as error:
        return reading.Newer(str(error))
    except errors.StoreError as error:
        return reading.Unanswered(str(error))


class Storage:
    """All stores that the resources name. Thread-safe. Writes and lists raise StoreError."""

    def __init__(
        self,
        *,
        readers: int = 16,
        prefixes: Iterable[str] = (),
        patience: Patience = PATIENCE,
        on_call: Callable[[str, float, bool], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`readers` is the most that is read at a time for one resource: each has its own, or what one store holds back
        would keep others from being read.

        `prefixes` are the administrator's: on a volume, no link below them is followed.

        `on_call` hears of every read or write: its name, seconds and whether the store answered.
        """
        self._prefixes = sorted(map(normal_uri, prefixes), key=len)
        self._readers = readers
        self._closed = threading.Event()
        self._patience = patience
        self._on_call = on_call
        self._clock = clock
        self._circuits: Recent[str, Circuit] = Recent(256)
        self._suspects: Recent[str, bool] = Recent(256)
        """Stores of which a result was not read in the last pass."""
        self._names: Recent[str, frozenset[str]] = Recent(64, clock)
        self._listing: Recent[str, threading.Lock] = Recent(64)
        """Held while the names of a store are listed."""
        self._laws: Recent[tuple[str, str, str], str] = Recent(256, clock)
        """Stamp of laws.json as it was when the fit with these laws was last known to be there."""
        self._stores: Recent[str, Store] = Recent(256)
        self._manifests: Recent[tuple[str, str], tuple[str, records.DataManifest]] = Recent(
            64, clock
        )
        """With their stamp; put again whenever they are known to be there still."""
        self._corpora: Recent[tuple[str, str], records.SweepCorpus] = Recent(256, clock)
        self._progress: Recent[tuple[str, str], reading.Read[records.PointProgress]] = Recent(
            4096, clock
        )
        self._checkpoint_stamps: Recent[str, reading.Read[str]] = Recent(256, clock)
        self._model_configs: Recent[str, dict[str, Any]] = Recent(256, clock)
        self._fits: Recent[tuple[str, str, str], FitOutcome] = Recent(16)

    # --------------------------------------------------------------------------------- reading

    def manifest(self, uri: str, path: str) -> reading.Read[records.DataManifest]:
        """The tokenized corpus."""
        if (known := self._manifests.get((uri, path), MANIFEST_SECONDS)) is not None:
            return known[1]
        kept = self._manifests.get((uri, path))
        stamp = read_of(lambda: self.timed("stamp", lambda: self.store(uri).stamp(path)))
        if kept is not None and (stamp == kept[0] or isinstance(stamp, reading.Unanswered)):
            self._manifests.put((uri, path), kept)
            return kept[1]
        self._manifests.drop((uri, path))
        found = self._read_record(uri, path, records.DataManifest, "manifest", limits.MANIFEST)
        if isinstance(found, records.DataManifest) and isinstance(stamp, str):
            self._manifests.put((uri, path), (stamp, found))
        return found

    def sweep_corpus(self, uri: str, path: str) -> reading.Read[records.SweepCorpus]:
        """Which corpus is a sweep's."""
        kept = self._corpora.get((uri, path), CORPUS_SECONDS)
        if kept is not None:
            return kept
        found = self._read_record(uri, path, records.SweepCorpus, "corpus", limits.PROGRESS)
        if isinstance(found, records.SweepCorpus):
            self._corpora.put((uri, path), found)
        return found

    def model_config(self, checkpoint: str) -> reading.Read[dict[str, Any]]:
        """A checkpoint's config.json, a minute old at most."""
        kept = self._model_configs.get(checkpoint, MODEL_CONFIG_SECONDS)
        if kept is not None:
            return kept
        store = self.store(checkpoint)
        found = read_of(lambda: self.timed("model", lambda: store.read_json_object(MODEL_CONFIG)))
        if isinstance(found, dict):
            self._model_configs.put(checkpoint, found)
        return found

    def checkpoint_stamp(self, checkpoint: str) -> reading.Read[str]:
        """What changes whenever a file of the checkpoint is replaced, a minute old at most.

        Absent if the store does not let the operator list them; Unanswered if it once did: what was measured of them
        would be measured again, under their URI. Unreadable if they are no checkpoint.
        """
        kept = self._checkpoint_stamps.get(checkpoint, MODEL_CONFIG_SECONDS)
        if kept is not None:
            return kept
        found = read_of(lambda: self._stamp_of_files(checkpoint))
        if not isinstance(found, reading.Unanswered):
            self._checkpoint_stamps.put(checkpoint, found)
        return found

    def _stamp_of_files(self, checkpoint: str) -> str:
        """Raises StoreError; NotFound if the files may not be listed, and never could be; BadRecord if they are no
        checkpoint: it was removed, or its volume is not mounted.
        """
        store = self.store(checkpoint)

        def stamp(name: str) -> str:
            return self.timed("checkpoint", lambda: store.stamp(name))

        try:
            names = self.timed("checkpoint", lambda: store.names(""))
            files = sorted(name for name in names if name.endswith(CHECKPOINT_FILES))
            stamps = self._each(files[:MAX_CHECKPOINT_FILES], stamp, RESULTS_SECONDS)
        except errors.StoreRefused as error:
            if isinstance(self._checkpoint_stamps.get(checkpoint), str):
                message = f"{error}; the files could be listed before: grant that again"
                raise errors.StoreUnavailable(message) from error
            raise errors.NotFound(str(error)) from error
        if MODEL_CONFIG not in stamps or not any(name.endswith(WEIGHTS) for name in stamps):
            raise errors.BadRecord(f"{checkpoint}: config.json or the {WEIGHTS} files are missing")
        return hashlib.sha256(json.dumps(stamps, sort_keys=True).encode()).hexdigest()

    def point_names(self, uri: str, max_age_seconds: float = 0.0) -> frozenset[str]:
        """Keys of the points that any sweep has started in this store, read once for all sweeps in it.

        Raises StoreUnavailable.
        """
        store = self.store(uri)
        with self._listing.get_or_make(uri, threading.Lock):
            names = self._names.get(uri, max_age_seconds)
            if names is None:
                names = frozenset(self.timed("list", lambda: store.names(layout.POINTS)))
                self._names.put(uri, names)
            return names

    def results(
        self, uri: str, keys: Iterable[str]
    ) -> dict[str, reading.Read[records.PointResult]]:
        """Results by point key; absent ones are left out. One that cannot be read holds up no other."""

        def read_one(key: str) -> reading.Read[records.PointResult]:
            path = layout.point_result(key)
            return self._read_record(uri, path, records.PointResult, "result", limits.RESULT)

        began = self._clock()
        if self._suspects.get(uri):
            # The one result that is left may be the one that the store does not give out.
            control = layout.point_claim("none")
            read_of(lambda: self.timed("control", lambda: self.store(uri).stamp(control)))
        answers = self._each(list(dict.fromkeys(keys)), read_one, RESULTS_SECONDS)
        found = {key: read for key, read in answers.items() if read != reading.ABSENT}
        lacking = {
            key: read for key, read in found.items() if isinstance(read, reading.Unanswered)
        }
        self._suspects.put(uri, bool(lacking))
        circuit = self._circuit(uri)
        if lacking and circuit.has_answered_since(began):
            circuit.answered()
            found |= {key: replace(read, alone=True) for key, read in lacking.items()}
        return found

    def progress(
        self, uri: str, keys: Iterable[str]
    ) -> dict[str, reading.Read[records.PointProgress]]:
        """Progress of each point key, a few seconds old at most; what is unusable is absent."""

        def read_one(key: str) -> reading.Read[records.PointProgress]:
            kept = self._progress.get((uri, key), PROGRESS_SECONDS)
            if kept is not None:
                return kept
            path = layout.point_progress(key)
            found = self._read_record(
                uri, path, records.PointProgress, "progress", limits.PROGRESS
            )
            if isinstance(found, reading.Unanswered):
                return found
            is_others = isinstance(found, records.PointProgress) and found.key != key
            if is_others or isinstance(found, reading.Unreadable):
                found = reading.ABSENT  # its trainer soon writes another
            self._progress.put((uri, key), found)
            return found

        # In another order each time: if the time is too short for all, it is for others in the next pass.
        wanted = list(dict.fromkeys(keys))
        random.shuffle(wanted)
        return self._each(wanted, read_one, PROGRESS_SECONDS_FOR_ALL)

    def _each(
        self, items: Sequence[Item], read: Callable[[Item], Value], seconds: float
    ) -> dict[Item, Value]:
        """Read in parallel; nothing is begun after `seconds`."""

        def begin(item: Item) -> Value:
            if self._closed.is_set():
                raise errors.StoreUnavailable("not asked: the operator ends")
            return read(item)

        if not items:
            return {}
        readers = min(self._readers, len(items))
        with time_limit(seconds), ThreadPoolExecutor(readers, "store") as pool:
            calls = [pool.submit(copy_context().run, begin, item) for item in items]
            return {item: call.result() for item, call in zip(items, calls, strict=True)}

    def courses(
        self, uri: str, digests: Mapping[str, str], *, raw: bool
    ) -> dict[str, reading.Read[Course]]:
        """Losses of finished points by key, of the raw or the averaged weights; `digests` are of their trajectories."""
        store = self.store(uri)

        def read_one(key: str) -> reading.Read[Course]:
            def rows() -> Sequence[records.TrajectoryRow]:
                return read_finished(store, key, digests[key], MAX_COURSE_BYTES)

            def course() -> Course:
                read = self.timed("trajectory", rows)
                losses = ((row.tokens, row.loss if raw else row.averaged_loss) for row in read)
                return tuple((tokens, loss) for tokens, loss in losses if tokens and loss)

            return read_of(course)

        return self._each(list(digests), read_one, RESULTS_SECONDS)

    def evaluation(self, uri: str, path: str) -> reading.Read[records.EvaluationResult]:
        """A checkpoint's initial loss."""
        return self._read_record(
            uri, path, records.EvaluationResult, "evaluation", limits.EVALUATION
        )

    def fit_outcome(
        self, uri: str, laws_path: str, known_sha256: str = ""
    ) -> reading.Read[FitOutcome]:
        """What the newest fit left. Laws of a digest that is known already are read only once."""
        kept = self._fits.get((uri, laws_path, known_sha256)) if known_sha256 else None
        if kept is not None:
            return kept
        store = self.store(uri)

        def read(path: str, max_bytes: int) -> bytes:
            return self.timed("laws", lambda: store.read(path, max_bytes=max_bytes))

        outcome = read_of(lambda: fit_files.read_outcome(read, laws_path))
        if isinstance(outcome, FitOutcome) and outcome.laws is not None:
            self._fits.put((uri, laws_path, outcome.laws_sha256), outcome)
        return outcome

    def laws_are_lost(
        self, uri: str, laws_path: str, laws_sha256: str, interval_seconds: float
    ) -> bool:
        """Whether the fit with these laws is no longer what the store holds. Unanswered is no loss.

        The store is asked once per interval: for the small fit.json, and for laws.json only if it has been replaced.
        """
        key = uri, laws_path, laws_sha256
        if self._laws.get(key, interval_seconds) is not None:
            return False
        store = self.store(uri)
        record = self._read_record(
            uri,
            fit_files.fit_path(laws_path),
            fit_files.FitRecord,
            "fit",
            limits.FIT,
            fit_files.NEWEST_FIT,
        )
        stamp = read_of(lambda: self.timed("stamp", lambda: store.stamp(laws_path)))
        if reading.is_unknown(record) or reading.is_unknown(stamp):
            return False
        is_named = isinstance(record, fit_files.FitRecord) and record.laws_sha256 == laws_sha256
        is_sound, before = is_named and isinstance(stamp, str), self._laws.get(key)
        # At first sight this process has just written or read the laws.
        if is_sound and before not in (None, stamp):
            found = self.fit_outcome(uri, laws_path)
            if reading.is_unknown(found):
                return False
            is_sound = isinstance(found, FitOutcome)
        if is_sound and isinstance(stamp, str):
            self._laws.put(key, stamp)
        else:
            self._laws.drop(key)
        return not is_sound

    def page_shows(self, uri: str, path: str) -> str:
        """What a page says of itself in its first line, see fit_files.shown_first; empty if it is not there."""
        store = self.store(uri)
        try:
            first = self.timed("page", lambda: store.read_range(path, 0, fit_files.SHOWN_BYTES))
        except errors.StoreError:
            return ""
        return fit_files.shown_in(first)

    # --------------------------------------------------------------------------------- writing

    def quarantine(self, uri: str, request: Quarantine) -> None:
        """Copy an unusable object to another name and remove it; does nothing if it is gone. Another object that has that
        name already stays."""
        store = self.store(uri)
        try:
            content = self.timed("set-aside", lambda: store.read(request.path))
        except errors.NotFound:
            return
        except errors.BadRecord as error:
            content = f"not kept: {error}\n".encode()
        try:
            kept = self._content(store, request.new_path)
            if kept is None:
                self.write("set-aside", uri, request.new_path, content)
            elif kept != content:
                digest = hashlib.sha256(content).hexdigest()[:8]
                self.write("set-aside", uri, f"{request.new_path}-{digest}", content)
            self.timed("set-aside", lambda: store.remove(request.path))
        except errors.BadRecord:
            # The folder is a link or a file. Removing it follows nothing.
            self.timed("set-aside", lambda: store.remove(request.path.rpartition("/")[0]))

    def _content(self, store: Store, path: str) -> bytes | None:
        """None: there is none, or none that may be read, such as a link, of which a write takes the place."""
        try:
            return self.timed("set-aside", lambda: store.read(path))
        except (errors.NotFound, errors.BadRecord):
            return None

    def write(self, name: str, uri: str, path: str, content: bytes) -> None:
        """Write an object; `name` is that of the operation in the metrics."""
        self.written(name, uri, lambda: self.store(uri).write(path, content))

    def written(self, name: str, uri: str, write: Callable[[], Value]) -> Value:
        """What a call that writes returns; a store that is not there is unavailable."""
        try:
            return self.timed(name, write)
        except errors.NotFound as error:
            # A missing bucket: only a write can distinguish it from a missing object.
            raise errors.StoreUnavailable(f"{uri}: no such bucket or folder") from error

    # ------------------------------------------------------------------------------------- calls

    def anchor(self, uri: str) -> str:
        """The highest folder over the store that the configuration names; tenants may write below it."""
        normal = normal_uri(uri)
        above = (p for p in self._prefixes if f"{normal}/".startswith(f"{p}/"))
        return next(above, uri)

    def store(self, uri: str) -> Store:
        """The store at a URI, opened once."""
        store = self._stores.get(uri)
        if store is None:
            circuit = self._circuit(uri)
            store = Store(uri, self._patience, anchor=self.anchor(uri), circuit=circuit)
            self._stores.put(uri, store)
        return store

    def _circuit(self, uri: str) -> Circuit:
        """One for each store: others in its bucket belong to others."""
        return self._circuits.get_or_make(uri, lambda: Circuit(self._clock))

    def _read_record(
        self,
        uri: str,
        path: str,
        model: type[Record],
        name: str,
        limit: Limit,
        newest: tuple[str, int] = CONTRACT,
    ) -> reading.Read[Record]:
        store = self.store(uri)

        def read() -> Record:
            content = self.timed(name, lambda: store.read(path, max_bytes=limit.max_bytes))
            return parse_record(content, model, store.location(path), limit=limit, newest=newest)

        return read_of(read)

    def timed(self, name: str, call: Callable[[], Value]) -> Value:
        """Make a call and report its name, duration and whether it was answered."""
        started = time.monotonic()
        answered = False
        try:
            value = call()
            answered = True
        except (errors.NotFound, errors.BadRecord, errors.NewerRecord, errors.WriteConflict):
            answered = True
            raise
        finally:
            self._on_call(name, time.monotonic() - started, answered)
        return value

    def close(self) -> None:
        """Start no further reads."""
        self._closed.set()
