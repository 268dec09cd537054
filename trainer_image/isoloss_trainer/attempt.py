"""One attempt at a point: its claim, what it reports to the store, and what becomes of the run, which a later attempt
continues from.

torch is not needed here: an attempt may find that there is nothing to train.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import platform
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from isoloss_contract import layout, records
from isoloss_contract.records.points import evaluation_steps
from isoloss_contract.store import (
    BadRecord,
    NewerRecord,
    NotFound,
    Store,
    StoreError,
    WriteConflict,
    parse_record,
)
from isoloss_trainer.log import Log
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import ClaimedElsewhere, Interrupted, Interruption
from isoloss_trainer.world import World

if TYPE_CHECKING:
    from isoloss_trainer.evaluation import Loss, Losses

# ------------------------------------------------------------------------------ what it has at hand


@dataclass(frozen=True)
class Attempt:
    """What every part of a run may ask for."""

    task: records.TrainTask
    store: Store
    data: PreparedData
    scratch: Path
    fence: Fence
    world: World
    interruption: Interruption
    log: Log
    grace_seconds: float = 0.0
    """From SIGTERM to SIGKILL; 0: not known."""
    clock: Callable[[], float] = time.monotonic


class Stopwatch:
    """Seconds since it was made, and of the activities that were timed with it."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._activities: dict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        """Since the stopwatch was made."""
        return time.monotonic() - self._started

    def seconds_without(self, activity: str) -> float:
        """As `seconds`, less those of this activity."""
        return self.seconds - self._activities[activity]

    @contextmanager
    def timing(self, activity: str) -> Iterator[None]:
        """Add the duration of the block to `activity`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._activities[activity] += time.monotonic() - started

    def shares(self) -> dict[str, float]:
        """Each activity's share of all time so far, as `<activity>_share`."""
        total = max(1e-9, self.seconds)
        return {f"{name}_share": spent / total for name, spent in self._activities.items()}


# ---------------------------------------------------------------------------------------- its claim


FRESH_SECONDS = 60.0
HEARTBEAT_SECONDS = 15.0


class Claim(records.Record):
    """The content of claim.json."""

    claimant: records.Claimant
    holder: str
    """A random name of the process: it distinguishes two pods of one attempt."""
    updated_at: str
    """RFC 3339, UTC."""


class Fence:
    """This process's claim on a point: with its heartbeat it keeps two pods from mixing their output.

    Object stores have no lock in common, so that it is a lease: a pod that was cut off and comes back
    finds another's claim before it writes a manifest or a result, and exits.
    """

    def __init__(self, store: Store, key: str, claimant: records.Claimant) -> None:
        self._store = store
        self._path = layout.point_claim(key)
        self._claimant = claimant
        self._holder = uuid.uuid4().hex

    def acquire(self) -> None:
        """Take the claim. Raises ClaimedElsewhere while another sweep, or a later attempt of this
        one, trains the point."""
        held, _ = self._read()
        if held is not None and self._yields_to(held.claimant):
            age = _age(held)
            # A clock may be ahead; a time far in the future is as good as none, or the point would never be free.
            if abs(age) < FRESH_SECONDS:
                when = f"{age:.0f} s ago" if age >= 0 else f"{-age:.0f} s in the future"
                raise ClaimedElsewhere(
                    "ClaimedElsewhere",
                    f"sweep {held.claimant.sweep_uid} (attempt {held.claimant.attempt}) holds this "
                    f"point; last heartbeat {when}",
                )
        self._store.write(self._path, self._renewed())

    def beat(self) -> None:
        """Renew the claim. Raises Interrupted(Superseded) if another has taken it."""
        version = self._version()
        try:
            self._store.write_if(self._path, self._renewed(), version)
        except WriteConflict:
            self.check()  # or an earlier heartbeat, whose answer was lost, has arrived since

    def check(self) -> None:
        """Raises Interrupted(Superseded) unless the claim is still ours. Call before each manifest or result."""
        self._version()

    def _version(self) -> str | None:
        """Of the claim, which is still ours. Raises as `check`."""
        held, version = self._read()
        if held is None:
            # An attempt that took over may have finished and released it: its result must stand.
            raise Interrupted("Superseded", "the claim on this point is gone")
        if held.holder != self._holder:
            raise Interrupted(
                "Superseded",
                f"attempt {held.claimant.attempt} of sweep {held.claimant.sweep_uid} took over",
            )
        return version

    def release(self) -> None:
        """Give the claim back, so that others need not wait for the heartbeat to expire."""
        held, _ = self._read()
        if held is not None and held.holder == self._holder:
            self._store.remove(self._path)

    def _yields_to(self, other: records.Claimant) -> bool:
        own = self._claimant
        return other.sweep_uid != own.sweep_uid or other.attempt > own.attempt

    def _read(self) -> tuple[Claim | None, str | None]:
        """The claim, if there is one that can be read, and its version."""
        try:
            content, version = self._store.read_versioned(self._path)
            return parse_record(content, Claim, self._path), version
        except (NotFound, BadRecord):
            return None, None

    def _renewed(self) -> bytes:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        claim = Claim(claimant=self._claimant, holder=self._holder, updated_at=now)
        return claim.model_dump_json(indent=1).encode()


def _age(claim: Claim) -> float:
    """Seconds since the last heartbeat, negative if that is in the future; infinite if the time is not readable."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(claim.updated_at)).total_seconds()
    except (ValueError, TypeError):
        return float("inf")


# ---------------------------------------------------------------------------------- what it reports


ROUND_SECONDS = 5.0


class Reporter:
    """Renews the claim in rank 0, from when it is entered; writes, every ROUND_SECONDS, what the training loop last
    noted, from when that began.

    Runs in a thread of its own, so that a store that is unavailable for a while delays nothing but the
    display. Finds out when another attempt has taken over.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._store, self._task = attempt.store, attempt.task
        self._fence, self._log = attempt.fence, attempt.log
        self._works = attempt.world.is_first
        self._key = attempt.task.point.key
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="reporter", daemon=True)
        self._rows: tuple[records.TrajectoryRow, ...] | None = None
        self._tokens = 0
        self._began: int | None = None
        self._attempt_began: int | None = None
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

    def begin(self, tokens: int, rows: tuple[records.TrajectoryRow, ...]) -> None:
        """Report from now on of a run that has seen `tokens` and has a trajectory of `rows`."""
        self.note(tokens, rows or None)
        self._started_at = time.monotonic()
        self._began = tokens

    def note(self, tokens: int, rows: tuple[records.TrajectoryRow, ...] | None = None) -> None:
        """Set what the next round writes; never blocks."""
        self._tokens = tokens
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
        if self._attempt_began is None:
            self._attempt_began = self._begin_attempt(self._began)
        rows, self._rows = self._rows, None
        try:
            if rows is not None:
                self._store.write(layout.point_trajectory(self._key), trajectory_text(rows))
        except StoreError:
            self._rows = self._rows or rows
            raise
        self._store.write_record(layout.point_progress(self._key), self._progress(rows))

    def _begin_attempt(self, began: int) -> int:
        """Tokens behind the run when the attempt began: an earlier pod of it may have trained some of them."""
        try:
            before = self._store.read_record(
                layout.point_progress(self._key), records.PointProgress
            )
        except (NotFound, BadRecord, NewerRecord):
            return began
        if before.claimant != self._task.claimant or before.began_tokens is None:
            return began
        return min(before.began_tokens, began)

    def _progress(self, rows: tuple[records.TrajectoryRow, ...] | None) -> records.PointProgress:
        if rows:
            self._loss = rows[-1].loss
        seconds = time.monotonic() - self._started_at
        tokens = self._tokens
        trained = tokens - (self._began or 0)
        return records.PointProgress(
            key=self._key,
            claimant=self._task.claimant,
            tokens=tokens,
            wanted_tokens=self._task.tokens,
            loss=self._loss,
            tokens_per_second=trained / seconds if seconds > 0 else None,
            updated_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            began_tokens=self._attempt_began,
        )


def stored_result(store: Store, key: str) -> records.PointResult | None:
    """What attempts so far came to; None: nothing, or it cannot be read.

    Raises NewerRecord for one that a newer trainer wrote: it must not be overwritten.
    """
    try:
        result = store.read_record(layout.point_result(key), records.PointResult)
    except (NotFound, BadRecord):
        return None
    return result if result.key == key else None


def trajectory_text(rows: tuple[records.TrajectoryRow, ...]) -> bytes:
    """JSON lines, one row each."""
    return "".join(row.model_dump_json() + "\n" for row in rows).encode()


# -------------------------------------------------------------------------- what becomes of the run


RISE_NATS = 1.0
"""A running mean of the loss this far above its lowest value so far …"""
RISE_STEPS = 100
"""… for this many steps in a row means divergence."""
MEAN_STEPS = 20
"""Time constant of that mean: at a scatter of 1 nat per step it scatters by 0.16 nats."""


class DivergenceWatch(records.Record, frozen=False):
    """Decides step by step whether the training loss has diverged.

    A mean, because single steps of small batches scatter by more than RISE_NATS; compared with its
    lowest value, because a run that has learned something may diverge to far below its first loss.
    """

    mean: records.Finite | None = None
    lowest: records.Finite | None = None
    high_steps: int = Field(default=0, ge=0)

    def has_diverged(self, loss: float) -> bool:
        """Take in the next step's loss, nats per token."""
        if not math.isfinite(loss):
            return True
        if self.mean is None or self.lowest is None:
            self.mean = self.lowest = loss
        self.mean += (loss - self.mean) / MEAN_STEPS
        self.lowest = min(self.lowest, self.mean)
        self.high_steps = self.high_steps + 1 if self.mean > self.lowest + RISE_NATS else 0
        return self.high_steps >= RISE_STEPS


class MicroBatch(records.Record):
    """How many sequences go through the model at once, and where: elsewhere the number means nothing."""

    sequences: int = Field(ge=1)
    processes: int = Field(ge=1)
    accelerated: bool
    recompute: bool = False
    """Whether layers were computed again in the backward pass."""

    @property
    def place(self) -> tuple[int, bool]:
        """Where the number of sequences means something."""
        return self.processes, self.accelerated


class TrainingState(records.Record, frozen=False):
    """Counters, trajectory and divergence watch. Timers and reporting are not part of it."""

    step: int = Field(default=0, ge=0)
    """Optimizer steps that the weights have taken."""
    trajectory: tuple[records.TrajectoryRow, ...] = ()
    """Scheduled evaluations only: without the one at the end of a run."""
    training_loss_sum: records.Finite = 0.0
    """Over the steps since the last scheduled evaluation."""
    logit_offset_sum: records.Finite = 0.0
    gradient_norm_sum: records.Finite = 0.0
    clipped_steps: int = Field(default=0, ge=0)
    training_loss_steps: int = Field(default=0, ge=0)
    """How many steps these four sums are over."""
    watch: DivergenceWatch = Field(default_factory=DivergenceWatch)
    accelerator_seconds: float = Field(default=0.0, ge=0)
    """Seconds of all attempts so far, summed over processes."""
    attempts: int = Field(default=1, ge=1)
    micro_batch: MicroBatch | None = None
    """What the last attempt computed with."""

    @property
    def is_evaluated(self) -> bool:
        """Whether the trajectory has an evaluation of where the run stands."""
        return bool(self.trajectory) and self.trajectory[-1].step == self.step

    def means(self) -> dict[str, Any]:
        """Over the steps since the last scheduled evaluation, by their names in TrajectoryRow; empty without steps."""
        sums = {
            "training_loss": self.training_loss_sum,
            "logit_offset": self.logit_offset_sum,
            "gradient_norm": self.gradient_norm_sum,
            "clipped_share": self.clipped_steps,
        }
        steps = self.training_loss_steps
        return {name: total / steps for name, total in sums.items()} if steps else {}

    def take_step(self, loss: float, offset: float, gradient_norm: float, clip: float) -> bool:
        """Take in what the next step found out; returns whether the run has diverged with it.

        A gradient whose norm is not finite has left no finite weights behind.
        """
        diverged = self.watch.has_diverged(loss)
        if diverged or not math.isfinite(gradient_norm) or not math.isfinite(offset):
            return True
        self.training_loss_sum += loss
        self.logit_offset_sum += offset
        self.gradient_norm_sum += gradient_norm
        self.clipped_steps += gradient_norm > clip
        self.training_loss_steps += 1
        return False

    def evaluated(self, tokens: int, raw: Losses, averaged: Losses) -> records.TrajectoryRow:
        """An evaluation of the raw and the averaged weights where the run stands; losses that are not finite become None."""
        (loss, domains), (averaged_loss, averaged_domains) = raw, averaged
        return records.TrajectoryRow(
            step=self.step,
            tokens=tokens,
            loss=_finite(loss.value),
            loss_standard_error=_finite(loss.standard_error),
            averaged_loss=_finite(averaged_loss.value),
            averaged_loss_standard_error=_finite(averaged_loss.standard_error),
            domains={name: _domain(domains[name], averaged_domains[name]) for name in domains},
            **self.means(),
        )

    def take_evaluation(self, row: records.TrajectoryRow) -> None:
        """Extend the trajectory by a scheduled evaluation."""
        self.trajectory = (*self.trajectory, row)
        self.training_loss_sum = self.logit_offset_sum = self.gradient_norm_sum = 0.0
        self.clipped_steps = self.training_loss_steps = 0


def _domain(raw: Loss, averaged: Loss) -> records.DomainLoss:
    return records.DomainLoss(
        loss=_finite(raw.value),
        standard_error=_finite(raw.standard_error),
        averaged_loss=_finite(averaged.value),
        averaged_standard_error=_finite(averaged.standard_error),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Timetable:
    """Steps are counted from 1. A run may be continued, so that all of it depends on the task alone."""

    batch_tokens: int
    """Tokens of one step."""
    steps: int
    """To reach the wanted tokens."""
    evaluations: Set[int]
    """The steps after which there is one."""

    @classmethod
    def of(cls, task: records.TrainTask) -> Timetable:
        """For the tokens that the task wants."""
        point = task.point
        batch_tokens = point.batch_size * point.sequence_length
        steps = -(-task.tokens // batch_tokens)
        return cls(
            batch_tokens=batch_tokens,
            steps=steps,
            evaluations=evaluation_steps(point.evaluation, batch_tokens, steps),
        )

    def is_evaluation_due(self, state: TrainingState) -> bool:
        """Whether one is scheduled where the run stands, and not in its trajectory."""
        return state.step in self.evaluations and not state.is_evaluated


PACKAGES = ("torch", "transformers", "isoloss")
"""Whose versions every result names: another version may compute another loss."""


def versions() -> dict[str, str]:
    """Versions of Python and of the PACKAGES that compute a result."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}


@functools.cache
def version_of(package: str) -> str:
    """Of an installed package, in words if it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # run from a checkout, as `make gpu-check` may be
