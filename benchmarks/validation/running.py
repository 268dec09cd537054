"""Trains many courses in processes of one thread each, and tells truthfully how long that takes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from pathlib import Path

from benchmarks.study import Say
from benchmarks.validation.courses import Course
from benchmarks.validation.training import Workshop
from isoloss_trainer.termination import Interrupted, Interruption

POLL_SECONDS = 1.0
"""Between two looks whether a stop was requested."""


class TrainingPool:
    """Processes that train; a stop request reaches them all, and what they train is saved."""

    def __init__(self, pool: ProcessPoolExecutor, jobs: int, interruption: Interruption) -> None:
        self._pool, self._jobs, self._interruption = pool, jobs, interruption

    def train(self, courses: Sequence[Course], what: str, say: Say) -> None:
        """Train them all, in order. Raises Interrupted once a stop is requested and every process has saved."""
        left = {self._pool.submit(_train, course): course for course in courses}
        pace, started = Pace(), time.monotonic()
        while left:
            done, _ = wait(left, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                course = left.pop(future)
                seconds = future.result()
                if seconds is None:
                    self._stop(left)
                pace.take(course, seconds or 0.0)
                remaining = pace.seconds(left.values()) / self._jobs
                say(
                    f"{what}: {len(courses) - len(left)}/{len(courses)}, {course.name}, "
                    f"{_left(remaining, time.monotonic() - started)}"
                )
            if self._interruption.requested:
                self._stop(left)

    def _stop(self, left: Iterable[Future[float | None]]) -> None:
        for future in left:
            future.cancel()
        for child in active_children():
            child.terminate()  # they take it for a stop request
        wait(left)
        raise Interrupted("Interrupted", "stop requested")


@contextmanager
def training_pool(folder: Path, jobs: int, interruption: Interruption) -> Iterator[TrainingPool]:
    """So many processes, each with a workshop of its own in `folder`, where all inputs are there."""
    # A forked torch may hang.
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_open, initargs=(folder,)) as pool:
        yield TrainingPool(pool, jobs, interruption)


@dataclass
class Pace:
    """Seconds per token, by what they depend on: the model and the batch size."""

    known: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)
    """Seconds and tokens by hidden size and batch size."""

    def take(self, course: Course, seconds: float) -> None:
        """One more course."""
        before, tokens = self.known.get(_kind(course), (0.0, 0))
        self.known[_kind(course)] = before + seconds, tokens + course.stops[-1]

    def seconds(self, courses: Iterable[Course]) -> float:
        """What these take one after another; kinds that are not known yet at the mean of those that are."""
        passed = sum(seconds for seconds, _ in self.known.values())
        mean = passed / max(sum(tokens for _, tokens in self.known.values()), 1)
        rates = {kind: seconds / tokens for kind, (seconds, tokens) in self.known.items()}
        return sum(
            (rates.get(_kind(course), mean) * course.stops[-1] for course in courses), start=0.0
        )


def _kind(course: Course) -> tuple[int, int]:
    return int(course.point.model["hidden_size"]), course.point.batch_size


def _left(seconds: float, passed: float) -> str:
    return f"{passed / 60:.0f} min so far, about {seconds / 60:.0f} min left"


# ------------------------------------------------------------------------------ in the processes

_workshop: Workshop


def _open(folder: Path) -> None:
    import torch

    global _workshop
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes it on
    interruption = Interruption()
    signal.signal(signal.SIGTERM, lambda _number, _frame: setattr(interruption, "requested", True))
    _workshop = Workshop(folder, interruption)


def _train(course: Course) -> float | None:
    """Seconds that it took; None: a stop was requested, and its state is saved."""
    started = time.monotonic()
    return time.monotonic() - started if _workshop.courses.train(course) else None
