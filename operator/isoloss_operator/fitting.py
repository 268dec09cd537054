"""Fits laws beside the operator: a process of its own per fit, so that nothing else ever waits.

A fit takes seconds to minutes of pure computation. Its inputs and outputs lie in the store; only the
outcome comes back. The process ends with the operator, whatever ends that.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from isoloss.observation import FitOutcome, FitRequest

NICENESS = 10
Key = TypeVar("Key")


@dataclass(frozen=True)
class FitJob:
    """A FitRequest and what else a process needs to know for it."""

    request: FitRequest
    store_uri: str
    tokenizer: str | None
    """Digest of the corpus' tokenizer."""
    title: str
    """Of the report."""


@dataclass(frozen=True)
class NotFitted:
    """The fit was kept from its work (store, memory, time): nothing is known of its inputs."""

    message: str


Answer = FitOutcome | NotFitted


RETRY_SECONDS = 60.0
"""A fit that failed for a reason outside its inputs is made again after this."""


@dataclass(frozen=True)
class _Kept:
    outcome: FitOutcome
    until: float


class Fitter(Generic[Key]):
    """Runs at most `processes` fits at once and remembers the newest outcome of each resource."""

    def __init__(
        self,
        *,
        processes: int,
        timeout_seconds: float,
        on_done: Callable[[Key, float, bool], None],
        run: Callable[[FitJob, float], Answer] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_done` hears of every end: the resource's key, seconds, and whether it is final."""
        self._pool = ThreadPoolExecutor(max_workers=processes, thread_name_prefix="fit")
        self._timeout = timeout_seconds
        self._on_done = on_done
        self._run = run or run_in_process
        self._clock = clock
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._kept: dict[str, _Kept] = {}

    def start(self, uid: str, key: Key, job: FitJob) -> None:
        """Fit in the background; nothing happens where this resource is being fitted already."""
        with self._lock:
            if uid in self._running:
                return
            self._running.add(uid)
        self._pool.submit(self._work, uid, key, job)

    def is_running(self, uid: str) -> bool:
        """Whether a fit of this resource waits or runs."""
        with self._lock:
            return uid in self._running

    def outcome(self, uid: str) -> FitOutcome | None:
        """The newest outcome; one that was not final only until it is time to try again."""
        with self._lock:
            kept = self._kept.get(uid)
            return kept.outcome if kept is not None and self._clock() < kept.until else None

    def remember(self, uid: str, outcome: FitOutcome) -> None:
        """An outcome of an earlier process, found in the store."""
        with self._lock:
            self._kept.setdefault(uid, _Kept(outcome, math.inf))

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        with self._lock:
            self._kept.pop(uid, None)

    def close(self) -> None:
        """Start no further fits; running ones end with this process."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, uid: str, key: Key, job: FitJob) -> None:
        started = time.monotonic()
        answer = self._run(job, self._timeout)
        is_final = isinstance(answer, FitOutcome)
        outcome = answer if isinstance(answer, FitOutcome) else failed(job.request, answer.message)
        until = math.inf if is_final else self._clock() + RETRY_SECONDS
        with self._lock:
            self._running.discard(uid)
            self._kept[uid] = _Kept(outcome, until)
        self._on_done(key, time.monotonic() - started, is_final)


def run_in_process(job: FitJob, timeout_seconds: float) -> Answer:
    """Fit in a new process and wait for it; one that dies or takes too long is an outcome too."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_main, args=(theirs, job), name="fit", daemon=True)
    process.start()
    theirs.close()
    try:
        answer: Answer
        if not ours.poll(timeout_seconds):
            return NotFitted(f"the fit was not done after {timeout_seconds:.0f} s")
        answer = ours.recv()
        return answer
    except EOFError:
        process.join(5)
        return NotFitted(f"the fit's process died (exit code {process.exitcode})")
    finally:
        process.kill()
        process.join(5)
        ours.close()


def failed(request: FitRequest, error: str) -> FitOutcome:
    """The outcome of a fit that did not get to laws."""
    return FitOutcome(
        inputs=request.inputs, laws=None, ledger_sha256=request.ledger_sha256, error=error
    )


def _main(answers: Connection, job: FitJob) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(NICENESS)
    # Here, in the new process: the operator itself needs neither optimiser nor plotting.
    from isoloss_operator.fit_process import fit

    answers.send(fit(job))
    answers.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
