"""Fits laws beside the operator: a process of its own per fit, so that nothing else ever waits.

A fit takes seconds to minutes of pure computation. Its inputs and outputs lie in the store; only the
outcome comes back. The process ends when nobody wants its fit any more, and with the operator,
whatever ends that.
"""

from __future__ import annotations

import contextlib
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

from isoloss_operator.decide.fits import FitOutcome, FitRequest
from isoloss_operator.fitting.fit_jobs import Answer, FitJob, NotFitted, failed

NICENESS = 10
POLL_SECONDS = 0.2
"""A fit that is no longer wanted ends within this."""
Key = TypeVar("Key")
Run = Callable[[FitJob, float, threading.Event], Answer]
"""Makes a fit within so many seconds; gives it up, with any answer, once the event is set."""

RETRY_SECONDS = 60.0
"""A fit that failed for a reason outside its inputs is made again after this."""


@dataclass(frozen=True)
class _Kept:
    outcome: FitOutcome
    until: float


@dataclass(frozen=True)
class _Running:
    request: FitRequest
    unwanted: threading.Event


class Fitter(Generic[Key]):
    """Runs at most `processes` fits at once and remembers the newest outcome of each resource.

    A resource has one fit at a time, and the newest request counts: it takes the place of one that
    waits, and ends one that runs.
    """

    def __init__(
        self,
        *,
        processes: int,
        timeout_seconds: float,
        on_done: Callable[[Key, float, bool], None],
        run: Run | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_done` hears of every end: the resource's key, seconds, and whether it is final.

        Not of a fit that was given up because nobody wants it any more.
        """
        self._pool = ThreadPoolExecutor(max_workers=processes, thread_name_prefix="fit")
        self._timeout = timeout_seconds
        self._on_done = on_done
        self._run = run or run_in_process
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[Key, FitJob]] = {}
        self._running: dict[str, _Running] = {}
        self._kept: dict[str, _Kept] = {}

    def start(self, uid: str, key: Key, job: FitJob) -> None:
        """Fit in the background; nothing happens where this very fit is running already."""
        with self._lock:
            running = self._running.get(uid)
            if running is not None and running.request.inputs == job.request.inputs:
                self._waiting.pop(uid, None)
                return
            is_scheduled = running is not None or uid in self._waiting
            self._waiting[uid] = (key, job)
            if running is not None:
                running.unwanted.set()
        if not is_scheduled:
            self._pool.submit(self._work, uid)

    def running(self, uid: str) -> FitRequest | None:
        """The request that is being fitted now; None too where one only waits for its turn."""
        with self._lock:
            running = self._running.get(uid)
            return running.request if running is not None else None

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
        """The resource is gone, and nobody wants its fit any more."""
        with self._lock:
            self._kept.pop(uid, None)
            self._waiting.pop(uid, None)
            running = self._running.get(uid)
            if running is not None:
                running.unwanted.set()

    def close(self) -> None:
        """Start no further fits, and end those that run."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for running in self._running.values():
                running.unwanted.set()

    def _work(self, uid: str) -> None:
        with self._lock:
            if uid not in self._waiting:
                return
            key, job = self._waiting.pop(uid)
            unwanted = threading.Event()
            self._running[uid] = _Running(job.request, unwanted)
        started = time.monotonic()
        answer = self._run(job, self._timeout, unwanted)
        with self._lock:
            del self._running[uid]
            is_wanted = not unwanted.is_set()
            if is_wanted:
                self._kept[uid] = self._worth_keeping(job, answer)
            goes_on = uid in self._waiting
        if is_wanted:
            self._on_done(key, time.monotonic() - started, isinstance(answer, FitOutcome))
        if goes_on:
            # From here, not in a loop: other resources that have waited longer come first.
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._pool.submit(self._work, uid)

    def _worth_keeping(self, job: FitJob, answer: Answer) -> _Kept:
        if isinstance(answer, FitOutcome):
            return _Kept(answer, math.inf)
        return _Kept(failed(job.request, answer.message), self._clock() + RETRY_SECONDS)


def run_in_process(job: FitJob, timeout_seconds: float, unwanted: threading.Event) -> Answer:
    """Fit in a new process and wait for it; one that dies or takes too long is an outcome too."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_main, args=(theirs, job), name="fit", daemon=True)
    process.start()
    theirs.close()
    deadline = time.monotonic() + timeout_seconds
    try:
        while not ours.poll(min(POLL_SECONDS, timeout_seconds)):
            if unwanted.is_set():
                return NotFitted("nobody wants this fit any more")
            if time.monotonic() >= deadline:
                return NotFitted(f"the fit was not done after {timeout_seconds:.0f} s")
        answer: Answer = ours.recv()
        return answer
    except EOFError:
        process.join(5)
        return NotFitted(f"the fit's process died (exit code {process.exitcode})")
    finally:
        process.kill()
        process.join(5)
        ours.close()


def _main(answers: Connection, job: FitJob) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(NICENESS)
    # Here, in the new process: the operator itself needs neither optimiser nor plotting.
    from isoloss_operator.fitting.fit_process import fit

    answers.send(fit(job))
    answers.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
