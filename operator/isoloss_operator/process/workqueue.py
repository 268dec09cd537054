"""A rate-limited work queue like client-go's. It knows nothing about our resources.

A key is queued once and processed by one worker at a time. A key added while it is processed is queued again
afterwards. A key can be added with a delay, and a failing key is retried with growing delays. However many
events arrive, a key rests for a share of the time of its last run, and for a minimum interval.

Keys that go first come before the others of their group: what people ask, the newest before what they asked earlier, and
then what others wait for. What has waited too long has every other turn of its group, so that no stream of questions starves it.

Keys belong to groups, which take turns: that with the fewest keys being processed comes next, and of equals the
one that was served longest ago. No group has all workers, so that slow keys of one leave one for the others.
"""

import heapq
import itertools
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Reconcile = Callable[[Key], float | None]
"""Processes one key; returns the seconds after which to requeue it, or None."""

KEPT_BACKOFFS = 1000
"""Past rests are dropped when there are more."""

logger = logging.getLogger(__name__)


class WorkQueue(Generic[Key]):
    """Thread-safe. All times are seconds of `clock`."""

    def __init__(
        self,
        *,
        minimum_interval: float = 0.0,
        rest_share: float = 0.5,
        first_retry: float = 0.5,
        longest_retry: float = 30.0,
        group_of: Callable[[Key], Hashable] = lambda _key: None,
        most_of_group: float = math.inf,
        goes_first: Callable[[Key], bool] = lambda _key: False,
        longest_wait: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most `most_of_group` keys of a group are processed at a time. `goes_first` is asked of a key once it is due.
        One that has been due for `longest_wait` has every other turn of its group.

        A `rest_share` of a half limits one key to two thirds of a worker's time: slow keys must not starve others.
        """
        self._minimum_interval = minimum_interval
        self._rest_share = rest_share
        self._first_retry = first_retry
        self._longest_retry = longest_retry
        self._group_of = group_of
        self._most_of_group = most_of_group
        self._goes_first = goes_first
        self._longest_wait = longest_wait
        self._first: set[Key] = set()
        """Keys that are to go first the next time they are handed out."""
        self._clock = clock
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Key]] = []
        """What is not due yet, or was not when last checked."""
        self._ready: dict[Hashable, tuple[deque[tuple[float, Key]], ...]] = {}
        """What is due, by group: what goes first, all else, and both, oldest first."""
        self._gave_oldest: set[Hashable] = set()
        """Groups whose last turn had the key that had waited longest, and too long."""
        self._working: Counter[Hashable] = Counter()
        """Active keys by group."""
        self._turns = itertools.count(1)
        self._last_turn: dict[Hashable, int] = {}
        self._numbers = itertools.count()
        self._due: dict[Key, float] = {}
        self._started: dict[Key, float] = {}
        """When each active key was handed out: those that are being processed."""
        self._rested: dict[Key, float] = {}
        """Before this time a key is not handed out again."""
        self._failures: dict[Key, int] = {}
        self._handed_out = clock()
        """When a key was handed out last."""
        self._closed = False

    def add(self, key: Key, *, first: bool = False) -> None:
        """Queue `key` for as soon as its minimum interval allows, `first` before all that its group has by now."""
        if first:
            with self._changed:
                if key not in self._first:
                    self._first.add(key)
                    if key in self._due and key not in self._started:
                        self._push(key, self._due[key])  # it may be due already
        self.add_after(key, 0.0)

    def add_after(self, key: Key, seconds: float) -> None:
        """Queue `key` for after `seconds`, unless it is due earlier already."""
        with self._changed:
            if self._closed:
                return
            due = max(self._clock() + seconds, self._rested.get(key, -math.inf))
            if key in self._due and self._due[key] <= due:
                return
            self._due[key] = due
            if key not in self._started:
                self._push(key, due)

    def retry(self, key: Key) -> float:
        """Queue `key` for after a delay that doubles with every consecutive failure; returns the delay."""
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
        seconds = float(min(self._first_retry * 2.0 ** min(failures, 60), self._longest_retry))
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: Key) -> None:
        """Its next failure counts as the first."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self) -> Key | None:
        """Wait for a key that is due and not active; None once the queue is closed.

        Every key returned must be given to `done`.
        """
        with self._changed:
            while not self._closed:
                key = self._take_due()
                if key is not None:
                    return key
                wait = self._heap[0][0] - self._clock() if self._heap else None
                self._changed.wait(wait)
            return None

    def done(self, key: Key) -> None:
        """A worker has finished `key`. It is due again if it was added meanwhile."""
        with self._changed:
            self._working[self._group_of(key)] -= 1
            self._let_rest(key)
            if key in self._due:
                self._due[key] = max(self._due[key], self._rested.get(key, -math.inf))
                self._push(key, self._due[key])
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out no more keys: every waiting `get` returns None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def ready(self) -> int:
        """Keys that are due now and wait for a worker."""
        with self._changed:
            now = self._clock()
            return sum(due <= now and key not in self._started for key, due in self._due.items())

    def longest_wait(self) -> float:
        """Seconds that the longest-waiting due key has been waiting for a worker."""
        with self._changed:
            now = self._clock()
            waits = (now - due for key, due in self._due.items() if key not in self._started)
            return max(0.0, *waits, 0.0)

    def stalled_seconds(self) -> float:
        """Seconds for which no key was handed out although one was due, of a group that had not all its workers.

        However long a backlog is, this is no longer than a pass while anything is worked on.
        """
        with self._changed:
            now = self._clock()
            waiting = (
                due
                for key, due in self._due.items()
                if key not in self._started and not self._has_most(self._group_of(key))
            )
            return max(0.0, now - max(min(waiting, default=math.inf), self._handed_out))

    def longest_run(self) -> float:
        """Seconds that the longest-running worker has been processing its key."""
        with self._changed:
            now = self._clock()
            return max((now - started for started in self._started.values()), default=0.0)

    def _push(self, key: Key, due: float) -> None:
        heapq.heappush(self._heap, (due, next(self._numbers), key))
        self._changed.notify()

    def _take_due(self) -> Key | None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            first, others, every = self._ready.setdefault(
                self._group_of(key), (deque(), deque(), deque())
            )
            every.append((due, key))
            if key in self._first:
                # A question is not to wait until a hundred sweeps that were applied before it have begun.
                first.appendleft((due, key))
            else:
                (first if self._goes_first(key) else others).append((due, key))
        for group in sorted(self._ready, key=self._turn):
            if self._has_most(group):
                continue
            found = self._next_of(group, now)
            if found is not None:
                del self._due[found]
                self._first.discard(found)
                self._started[found] = self._handed_out = now
                self._working[group] += 1
                self._last_turn[group] = next(self._turns)
                return found
        return None

    def _has_most(self, group: Hashable) -> bool:
        return self._working[group] >= self._most_of_group

    def _turn(self, group: Hashable) -> tuple[int, int]:
        return self._working[group], self._last_turn.get(group, 0)

    def _next_of(self, group: Hashable, now: float) -> Key | None:
        """Take the next key of the group, of those that go first if there are any; None if there is none."""
        first, others, every = self._ready[group]
        while every and not self._is_waiting(*every[0]):
            every.popleft()
        is_late = bool(every) and now - every[0][0] >= self._longest_wait
        if is_late and group not in self._gave_oldest:
            self._gave_oldest.add(group)
            return every.popleft()[1]
        self._gave_oldest.discard(group)
        for ready in (first, others):
            while ready:
                due, key = ready.popleft()
                if self._is_waiting(due, key):
                    return key
        del self._ready[group]
        return None

    def _is_waiting(self, due: float, key: Key) -> bool:
        """Entries that an earlier one replaced, or of an active key, are stale."""
        return self._due.get(key) == due and key not in self._started

    def _let_rest(self, key: Key) -> None:
        now, started = self._clock(), self._started.pop(key)
        rest = self._rest_share * (now - started)
        self._rested[key] = max(started + self._minimum_interval, now + rest)
        if len(self._rested) > 2 * len(self._due) + KEPT_BACKOFFS:
            self._rested = {each: until for each, until in self._rested.items() if until > now}


class Workers(Generic[Key]):
    """Threads that process a queue's keys until it is closed."""

    def __init__(
        self,
        queue: WorkQueue[Key],
        reconcile: Reconcile[Key],
        *,
        count: int,
        on_done: Callable[[Key, float, BaseException | None], None] = lambda *_: None,
    ) -> None:
        """`on_done` gets every finished key, the seconds it took and its exception."""
        self._queue = queue
        self._reconcile = reconcile
        self._on_done = on_done
        # Daemon threads: a call that hangs must not keep the process alive.
        self._threads = [
            threading.Thread(target=self._run, name=f"worker-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for the threads once the queue is closed; False if some still run."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (key := self._queue.get()) is not None:
            started = time.monotonic()
            error = self._work(key)
            self._queue.done(key)
            self._on_done(key, time.monotonic() - started, error)

    def _work(self, key: Key) -> BaseException | None:
        try:
            again = self._reconcile(key)
        except Exception as error:
            seconds = self._queue.retry(key)
            logger.warning(
                "Reconcile of %s failed, again in %.1f s: %s: %s",
                key,
                seconds,
                type(error).__name__,
                error,
                exc_info=not getattr(error, "expected", False),
            )
            return error
        self._queue.forget(key)
        if again is not None:
            self._queue.add_after(key, again)
        return None
