"""Runs fits in processes of their own, so that reconciliation never waits for one.

A fit is seconds to minutes of pure computation. Its inputs and outputs are in the store; only the outcome
is returned. Its process ends when the fit is superseded, and with the operator, even if that is killed.

Threads: reconcilers call `start`, `outcome` and the rest; `_fit` runs in a worker of the queue for each process that
may fit. All of them change the three dicts under one lock, which is never held while a fit runs or a callback is
called. The queue hands a resource to one worker at a time and has it again if it was added meanwhile. So a resource
has one fit at a time, and a request that comes meanwhile waits behind it. `superseded` is set once, under the lock;
from then on that fit stores no outcome and calls nobody.
"""

import contextlib
import logging
import math
import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Generic, TypeVar

from isoloss_operator.decide.fits import FitOutcome, FitRequest, Request
from isoloss_operator.fitting.fit_jobs import FitEnd, FitJob, LawsStored, NotFitted, failed
from isoloss_operator.process.workqueue import Workers, WorkQueue

NICENESS = 10
DEFAULT_MEMORY_MIB = 512
POLL_SECONDS = 0.2
"""A superseded fit is stopped within this time."""
Key = TypeVar("Key", bound=Hashable)
OnLaws = Callable[[FitOutcome], None]
"""Gets the outcome of a fit as soon as its laws are stored, before its report is drawn."""
Run = Callable[[FitJob, float, threading.Event, OnLaws], FitEnd]
"""Runs a fit with a timeout in seconds. Stops early, with any result, when the event is set."""

RETRY_SECONDS = 60.0
"""A fit that could not run is retried after this time, and after twice as long each time it still cannot."""
LONGEST_RETRY_SECONDS = 3600.0
PRELOADED = (
    "isoloss_operator.fitting.fit_process",
    "isoloss_contract.store.s3",
    "matplotlib.backends.backend_svg",
    "scipy.interpolate",
)
"""What fits need, imported once by the process that they are forked from: that takes longer than a small fit."""
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(list(PRELOADED))
REST_PER_SECOND = 9.0
"""So many seconds no provisional fit starts for each second that the last one took: while points come in,
fitting them again and again takes a tenth of one core at most, of however many resources."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kept:
    outcome: FitOutcome
    until: float
    failures: int = 0
    """How often in a row the fit could not run."""


@dataclass(frozen=True)
class _Running:
    request: Request
    superseded: threading.Event


class Fitter(Generic[Key]):
    """Runs at most `processes` fits at a time and keeps the newest outcome of each resource.

    Fits come before pages of the same group: laws and decisions are waited for. A new request replaces one that waits and stops one that runs. Groups (namespaces) take turns as in every WorkQueue:
    many fits of one group delay one of another by one fit at most. Provisional fits rest after each of them; others do
    not wait for that.
    """

    def __init__(
        self,
        *,
        processes: int,
        timeout_seconds: float,
        on_done: Callable[[Key, float, FitEnd], None],
        on_laws: Callable[[Key], None] = lambda _key: None,
        run: Run | None = None,
        group_of: Callable[[Key], Hashable] = lambda _key: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_done` gets the resource's key, the seconds and how the fit ended, `on_laws` the key once there is
        an outcome with laws and its report is still to come.

        Neither is called for superseded fits.
        """
        self._queue: WorkQueue[tuple[str, Key]] = WorkQueue(
            rest_share=0.0,
            group_of=lambda whose: group_of(whose[1]),
            goes_first=self._is_fit,
            clock=clock,
        )
        self._timeout = timeout_seconds
        self._on_done = on_done
        self._on_laws = on_laws
        self._run = run or run_in_process
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, FitJob] = {}
        self._running: dict[str, _Running] = {}
        self._kept: dict[str, _Kept] = {}
        self._backoff_until = -math.inf
        Workers(self._queue, self._fit, count=processes).start()

    def start(self, uid: str, key: Key, job: FitJob) -> None:
        """Fit in the background, unless a fit with the same inputs is running."""
        with self._lock:
            running = self._running.get(uid)
            is_wanted = running is not None and not running.superseded.is_set()
            if running is not None and is_wanted and running.request.inputs == job.request.inputs:
                self._waiting.pop(uid, None)
                return
            self._waiting[uid] = job
            if running is not None:
                running.superseded.set()
        self._queue.add((uid, key))

    def _is_fit(self, whose: tuple[str, Key]) -> bool:
        """Called by the queue, which holds its own lock: this one's is not taken."""
        job = self._waiting.get(whose[0])
        return job is not None and isinstance(job.request, FitRequest)

    def waits(self, uid: str) -> bool:
        """Whether a request waits for a process, which draws or fits something else."""
        with self._lock:
            return uid in self._waiting and uid not in self._running

    def running(self, uid: str) -> Request | None:
        """The request that is being fitted; None if there is none or it waits for a process."""
        with self._lock:
            running = self._running.get(uid)
            return running.request if running is not None else None

    def outcome(self, uid: str) -> FitOutcome | None:
        """The newest outcome. One that is not final is kept until the fit may be retried."""
        with self._lock:
            kept = self._kept.get(uid)
            return kept.outcome if kept is not None and self._clock() < kept.until else None

    def in_backoff(self, uid: str) -> bool:
        """Whether a provisional fit need not be asked for: none would start now, and none waits to be renewed."""
        with self._lock:
            return self._backoff_seconds() > 0 and uid not in self._waiting

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
        self._queue.close()
        with self._lock:
            for running in self._running.values():
                running.superseded.set()

    def _fit(self, whose: tuple[str, Key]) -> float | None:
        """Make the fit that waits, if any; returns the seconds after which to look again for one that rests."""
        uid, key = whose
        with self._lock:
            job, rest = self._waiting.get(uid), self._backoff_seconds()
            if job is None or (job.request.provisional and rest > 0):
                return None if job is None else rest
            del self._waiting[uid]
            superseded = threading.Event()
            self._running[uid] = _Running(job.request, superseded)
        started = self._clock()

        def keep_laws(outcome: FitOutcome) -> None:
            with self._lock:
                if superseded.is_set():
                    return
                self._kept[uid] = _Kept(outcome, math.inf)
            self._on_laws(key)

        try:
            answer = self._run(job, self._timeout, superseded, keep_laws)
        except Exception as error:
            # The fit would count as running for ever.
            logger.exception("The fit of %s failed", job.title)
            answer = NotFitted(f"{type(error).__name__}: {error}")
        ended = self._clock()
        with self._lock:
            del self._running[uid]
            is_wanted = not superseded.is_set()
            if job.request.provisional:
                self._backoff_until = ended + REST_PER_SECOND * (ended - started)
            if is_wanted:
                self._kept[uid] = self._worth_keeping(uid, job, answer)
        if is_wanted:
            self._on_done(key, ended - started, answer)
        return None

    def _backoff_seconds(self) -> float:
        return self._backoff_until - self._clock()

    def _worth_keeping(self, uid: str, job: FitJob, answer: FitEnd) -> _Kept:
        before = self._kept.get(uid)
        if before is not None and _had_laws(before.outcome, job.request, answer):
            return before  # it was made again for its report alone
        if isinstance(answer, FitOutcome):
            return _Kept(answer, math.inf)
        if not isinstance(job.request, FitRequest):  # when a page is drawn again is not for here
            return _Kept(failed(job.request, answer.message), math.inf)
        failures = before.failures + 1 if before else 1
        pause = min(LONGEST_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(failures - 1, 16))
        outcome = failed(job.request, answer.message, may_pass=answer.may_pass)
        return _Kept(outcome, self._clock() + pause, failures)


def _had_laws(before: FitOutcome, request: Request, answer: FitEnd) -> bool:
    """Whether there were laws of the same inputs already, and the answer has none."""
    has_laws = isinstance(answer, FitOutcome) and answer.laws is not None
    return before.laws is not None and before.inputs == request.inputs and not has_laws


def start_ahead() -> None:
    """Start the process that fits are forked from. It imports for seconds, for which the first fit would wait."""
    process = _PROCESSES.Process(target=_nothing, name="first-fit", daemon=True)
    with contextlib.suppress(OSError, EOFError):  # a fit tries again, and says so
        process.start()
        process.join()


def _nothing() -> None:
    """Forked once everything is imported."""


def run_in_process(
    job: FitJob,
    timeout_seconds: float,
    superseded: threading.Event,
    on_laws: OnLaws,
    *,
    memory_mib: int = DEFAULT_MEMORY_MIB,
    on_start: Callable[[], None] | None = None,
) -> FitEnd:
    """Fit in a new process and wait for it. One that dies, takes too long or too much memory is NotFitted;
    if that happens to it while it draws the report, the laws stand without one.

    `on_start` is called first in the new process, which has nothing of this one, its logging neither.
    """
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(
        target=_main, args=(theirs, job, memory_mib, on_start), name="fit", daemon=True
    )
    try:
        process.start()
    except (OSError, EOFError) as error:  # what it is forked from died; the next one is made anew
        ours.close()
        message = f"the fit's process did not start: {type(error).__name__}: {error}"
        return NotFitted(message, may_pass=True)
    finally:
        theirs.close()
    deadline = time.monotonic() + timeout_seconds
    stored: FitOutcome | None = None
    try:
        while isinstance(end := _await(ours, deadline, superseded), LawsStored):
            stored = end.outcome
            on_laws(stored)
    except EOFError:
        process.join(5)
        # Libraries in C end the process if they get no memory; others say so by themselves.
        limit = f"its memory is limited to {memory_mib} MiB (fitMemoryMiB)"
        end = NotFitted(f"the fit's process died (exit code {process.exitcode}); {limit}")
    except TimeoutError:
        end = NotFitted(f"the fit was not done after {timeout_seconds:.0f} s")
    finally:
        process.kill()
        process.join(5)
        ours.close()
    if stored is None or isinstance(end, FitOutcome):
        return end
    if superseded.is_set():  # as intended: the fit that replaces it draws a report of its own
        return stored
    logger.warning("The laws of %s have no report: %s", job.title, end.message)
    return stored


def _await(
    answers: Connection, deadline: float, superseded: threading.Event
) -> LawsStored | FitEnd:
    """What the process says next. Raises EOFError if it ended, TimeoutError at the deadline."""
    while not answers.poll(max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))):
        if superseded.is_set():
            return NotFitted("the fit was superseded")
        if time.monotonic() >= deadline:
            raise TimeoutError
    end: LawsStored | FitEnd = answers.recv()
    return end


def _main(
    answers: Connection, job: FitJob, memory_mib: int, on_start: Callable[[], None] | None
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):  # the operator is gone
        answers.send(_answer(answers, job, memory_mib, on_start))


def _answer(
    answers: Connection, job: FitJob, memory_mib: int, on_start: Callable[[], None] | None
) -> FitEnd:
    try:
        if on_start is not None:
            on_start()
        os.nice(NICENESS)
        _limit_memory(memory_mib)
        # Imported in the new process: the operator itself needs neither optimiser nor plotting.
        from isoloss_operator.fitting.fit_process import fit

        return fit(job, lambda outcome: answers.send(LawsStored(outcome)))
    except MemoryError:
        return NotFitted(f"the fit needs more than {memory_mib} MiB of memory (fitMemoryMiB)")
    except Exception as error:
        # Ended by it, the process would look like one that got no memory.
        logger.exception("The fit of %s failed", job.title)
        return NotFitted(f"{type(error).__name__}: {error}")


def _limit_memory(mib: int) -> None:
    """Fail by itself at the limit, and die first if the machine or container runs out before that.

    RLIMIT_DATA counts private writable memory: within 40% of what a fit really uses. RLIMIT_AS would count
    the code of every library and the stacks of threads that never grow, twice as much.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (mib * 2**20, mib * 2**20))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
