"""Runs fits in processes of their own, so that reconciliation never waits for one.

A fit is seconds to minutes of pure computation. Its inputs and outputs are in the store; only the outcome
is returned. Its process ends when the fit is superseded, and with the operator, even if that is killed.
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
from isoloss_operator.fitting.fit_jobs import FitEnd, FitJob, NotFitted, failed

NICENESS = 10
POLL_SECONDS = 0.2
"""A superseded fit is stopped within this time."""
Key = TypeVar("Key")
Run = Callable[[FitJob, float, threading.Event], FitEnd]
"""Runs a fit with a timeout in seconds. Stops early, with any result, when the event is set."""

RETRY_SECONDS = 60.0
"""A fit that could not run is retried after this time."""


@dataclass(frozen=True)
class _Kept:
    outcome: FitOutcome
    until: float


@dataclass(frozen=True)
class _Running:
    request: FitRequest
    superseded: threading.Event


class Fitter(Generic[Key]):
    """Runs at most `processes` fits at a time and keeps the newest outcome of each resource.

    A resource has one fit at a time. A new request replaces one that waits and stops one that runs.
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
        """`on_done` gets the resource's key, the seconds and whether the outcome is final.

        It is not called for superseded fits.
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
        """Fit in the background, unless a fit with the same inputs is running."""
        with self._lock:
            running = self._running.get(uid)
            if running is not None and running.request.inputs == job.request.inputs:
                self._waiting.pop(uid, None)
                return
            is_scheduled = running is not None or uid in self._waiting
            self._waiting[uid] = (key, job)
            if running is not None:
                running.superseded.set()
        if not is_scheduled:
            self._pool.submit(self._work, uid)

    def running(self, uid: str) -> FitRequest | None:
        """The request that is being fitted; None if there is none or it waits for a process."""
        with self._lock:
            running = self._running.get(uid)
            return running.request if running is not None else None

    def outcome(self, uid: str) -> FitOutcome | None:
        """The newest outcome. One that is not final is kept until the fit may be retried."""
        with self._lock:
            kept = self._kept.get(uid)
            return kept.outcome if kept is not None and self._clock() < kept.until else None

    def remember(self, uid: str, outcome: FitOutcome) -> None:
        """Keep an outcome that an earlier operator process left in the store."""
        with self._lock:
            self._kept.setdefault(uid, _Kept(outcome, math.inf))

    def forget(self, uid: str) -> None:
        """Drop all of a resource that is gone, and stop its fit."""
        with self._lock:
            self._kept.pop(uid, None)
            self._waiting.pop(uid, None)
            running = self._running.get(uid)
            if running is not None:
                running.superseded.set()

    def close(self) -> None:
        """Start no further fits and stop those that run."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for running in self._running.values():
                running.superseded.set()

    def _work(self, uid: str) -> None:
        with self._lock:
            if uid not in self._waiting:
                return
            key, job = self._waiting.pop(uid)
            superseded = threading.Event()
            self._running[uid] = _Running(job.request, superseded)
        started = time.monotonic()
        answer = self._run(job, self._timeout, superseded)
        with self._lock:
            del self._running[uid]
            is_wanted = not superseded.is_set()
            if is_wanted:
                self._kept[uid] = self._worth_keeping(job, answer)
            has_next = uid in self._waiting
        if is_wanted:
            self._on_done(key, time.monotonic() - started, isinstance(answer, FitOutcome))
        if has_next:
            # At the end of the queue: resources that have waited longer come first.
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._pool.submit(self._work, uid)

    def _worth_keeping(self, job: FitJob, answer: FitEnd) -> _Kept:
        if isinstance(answer, FitOutcome):
            return _Kept(answer, math.inf)
        return _Kept(failed(job.request, answer.message), self._clock() + RETRY_SECONDS)


def run_in_process(job: FitJob, timeout_seconds: float, superseded: threading.Event) -> FitEnd:
    """Fit in a new process and wait for it. One that dies or takes too long is NotFitted."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_main, args=(theirs, job), name="fit", daemon=True)
    process.start()
    theirs.close()
    deadline = time.monotonic() + timeout_seconds
    try:
        while not ours.poll(min(POLL_SECONDS, timeout_seconds)):
            if superseded.is_set():
                return NotFitted("the fit was superseded")
            if time.monotonic() >= deadline:
                return NotFitted(f"the fit was not done after {timeout_seconds:.0f} s")
        answer: FitEnd = ours.recv()
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
    # Imported in the new process: the operator itself needs neither optimiser nor plotting.
    from isoloss_operator.fitting.fit_process import fit

    answers.send(fit(job))
    answers.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
