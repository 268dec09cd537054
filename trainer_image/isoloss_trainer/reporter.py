"""Keeps the store informed while a point trains: heartbeat, progress, the trajectory so far.

Runs in a thread of its own, so that a store that is unavailable for a while delays nothing but the
display. Finds out when another attempt has taken over.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

from isoloss_contract import layout
from isoloss_contract.records import PointProgress, TrajectoryRow
from isoloss_contract.store import StoreError
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.claim import HEARTBEAT_SECONDS
from isoloss_trainer.termination import Interrupted

ROUND_SECONDS = 5.0


class Reporter:
    """Renews the claim in rank 0, from when it is entered; writes, every ROUND_SECONDS, what the training loop last
    noted, from when that began."""

    def __init__(self, attempt: Attempt) -> None:
        self._store, self._task = attempt.store, attempt.task
        self._fence, self._log = attempt.fence, attempt.log
        self._works = attempt.world.is_first
        self._key = attempt.task.point.key
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="reporter", daemon=True)
        self._rows: tuple[TrajectoryRow, ...] | None = None
        self._tokens = self._cooldown_tokens = 0
        self._began: int | None = None
        self._started_at = time.monotonic()
        self._beaten = time.monotonic()
        self._loss: float | None = None
        self.superseded: Interrupted | None = None
        """Set once another attempt has taken over."""

    def __enter__(self) -> Reporter:
        if self._works:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, tokens: int, cooldown_tokens: int, rows: tuple[TrajectoryRow, ...]) -> None:
        """Report from now on of a run that has seen `tokens`, those of its cooldowns not counted, and has a
        trajectory of `rows`."""
        self.note(tokens, cooldown_tokens, rows or None)
        self._started_at = time.monotonic()
        self._began = tokens + cooldown_tokens

    def note(
        self, tokens: int, cooldown_tokens: int, rows: tuple[TrajectoryRow, ...] | None = None
    ) -> None:
        """Set what the next round writes; never blocks."""
        self._tokens, self._cooldown_tokens = tokens, cooldown_tokens
        if rows is not None:
            self._rows = rows

    def close(self) -> None:
        """Stop the thread; nothing is written after this."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(ROUND_SECONDS):
            try:
                self._round()
            except Interrupted as error:
                self.superseded = error
                return
            except StoreError as error:
                self._log.event("store-unavailable", reason=str(error)[:300])

    def _round(self) -> None:
        self._fence.check()
        if time.monotonic() - self._beaten >= HEARTBEAT_SECONDS:
            self._fence.beat()
            self._beaten = time.monotonic()
        if self._began is None:
            return
        rows, self._rows = self._rows, None
        try:
            if rows is not None:
                self._store.write(layout.point_trajectory(self._key), trajectory_text(rows))
        except StoreError:
            self._rows = self._rows or rows
            raise
        self._store.write_record(layout.point_progress(self._key), self._progress(rows))

    def _progress(self, rows: tuple[TrajectoryRow, ...] | None) -> PointProgress:
        if rows:
            self._loss = rows[-1].loss
        seconds = time.monotonic() - self._started_at
        tokens, cooldown_tokens = self._tokens, self._cooldown_tokens
        trained = tokens + cooldown_tokens - (self._began or 0)
        return PointProgress(
            key=self._key,
            claimant=self._task.claimant,
            tokens=tokens,
            wanted_tokens=self._task.tokens,
            loss=self._loss,
            tokens_per_second=trained / seconds if seconds > 0 else None,
            updated_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            cooldown_tokens=cooldown_tokens,
        )


def trajectory_text(rows: tuple[TrajectoryRow, ...]) -> bytes:
    """JSON lines, one row each."""
    return "".join(row.model_dump_json() + "\n" for row in rows).encode()
