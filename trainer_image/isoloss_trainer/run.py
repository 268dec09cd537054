"""The training run of one point: build, resume, step, evaluate, save where it stands, finish."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isoloss_contract import layout
from isoloss_contract.checkpointing import Checkpointing
from isoloss_contract.records import Outcome, PointResult, TrajectoryRow
from isoloss_contract.store import Store
from isoloss_contract.trajectories import write_finished
from isoloss_trainer import evaluation, model
from isoloss_trainer.attempt import (
    Attempt,
    MicroBatch,
    Reporter,
    Stopwatch,
    Timetable,
    TrainingState,
    stored_result,
    trajectory_text,
    versions,
)
from isoloss_trainer.attention import preferred_kernels
from isoloss_trainer.checkpoint import Checkpoints, persist
from isoloss_trainer.foreign_model import check_config, fetching, load_weights
from isoloss_trainer.foreign_tokens import check_same_tokenizer
from isoloss_trainer.learner import CPU_TOKENS, Learner, StepFacts, time_constants
from isoloss_trainer.run_log import Meter, RunLog, flops_per_token, peak_flops
from isoloss_trainer.shards import TrainingSequences
from isoloss_trainer.termination import Interrupted, OutOfMemory

FIRST_SECONDS = 60.0
"""After which a run that may be preempted writes its first checkpoint, to know what one takes."""
STEPS_AT_ONCE = 16
"""What steps found out is read from an accelerator at once: each reading waits for it."""
SUPERSEDED = 2
"""Reason to end that outranks a stop request: what another attempt writes must stand."""


class StopRequested(Exception):
    """SIGTERM reached one of the processes."""


def run_point(attempt: Attempt) -> PointResult:
    """Train the point to its wanted tokens and write its result (rank 0 does the writing)."""
    deterministic = attempt.task.deterministic
    # From now on: building and restoring may take longer than a claim is fresh.
    with (
        Reporter(attempt) as reporter,
        preferred_kernels(
            attempt.world, attempt.task.point.precision, deterministic=deterministic
        ),
    ):
        run = PointRun(attempt, reporter)
        try:
            run.resume()
            run.train()
            return run.finish()
        except OutOfMemory as error:  # in every process
            run.ending = Ending(Outcome.OUT_OF_MEMORY, error.message)
            return run.finish()
        finally:
            run.close()


class PointRun:
    """A run: `state` and the learner's tensors are what it has become, all else follows from the task."""

    def __init__(self, attempt: Attempt, reporter: Reporter) -> None:
        """Build model, learner and data. Raises BadConfiguration and BadData if they do not fit together."""
        self.attempt, self.point = attempt, attempt.task.point
        point, data, world = self.point, attempt.data, attempt.world
        self.stopwatch = Stopwatch()
        self.timetable = Timetable.of(attempt.task)
        self.state = TrainingState(attempts=attempt.task.claimant.attempt)
        self.ending = Ending(Outcome.SUCCEEDED)
        self._final_rows: tuple[TrajectoryRow, ...] | None = None
        self._unread: list[StepFacts] = []

        network = _network(attempt)
        self.parameters = model.count_parameters(network)
        flops = flops_per_token(network.config, self.parameters, point.sequence_length)
        self._meter = Meter(flops, peak_flops(world, point.precision), world)
        halvings = attempt.task.micro_batch_halvings
        self.learner = Learner(network, point, world, halvings, self._check)
        self.sequences = TrainingSequences(data, point.mixture, point.seed, world)
        limit = point.evaluation.sequences_per_domain
        self._validation = evaluation.ValidationSet(data, point.mixture, limit)

        self.saving = Saving(attempt, self.learner, self.timetable, self.stopwatch)
        self._reporter = reporter
        self._log = RunLog(
            attempt, self.learner, self._meter, self.stopwatch, self.parameters.active
        )

    @property
    def batch_tokens(self) -> int:
        """Tokens of one step."""
        return self.timetable.batch_tokens

    @property
    def tokens(self) -> int:
        """Tokens that the weights have seen."""
        return self.state.step * self.batch_tokens

    def resume(self) -> None:
        """Continue from the newest checkpoint if there is one. Raises OtherLayout."""
        restored, versions = self.saving.restore() or (None, None)
        if restored is not None:
            self.state = restored
        self.learner.on_host()
        self._log.start(self.tokens, resumed=restored is not None, written_by=versions)
        self._reporter.begin(self.tokens, self.state.trajectory)

    def train(self) -> None:
        """Step until the wanted tokens are seen and evaluated, or the run diverges.

        What is due follows from the state alone, so that a run that was stopped anywhere, also in
        the middle of an evaluation, continues as if it had not been. Raises Interrupted, after
        saving if a stop was requested, without saving if another attempt took over.
        """
        try:
            while self._lasts():
                self._check()
                if self.timetable.is_evaluation_due(self.state):
                    self.state.take_evaluation(self._evaluate(self._check))
                    self._reporter.note(self.tokens, self.state.trajectory)
                elif self.state.step < self.timetable.steps:
                    self._take_step()
                else:
                    break
            self._final_rows = self.final_trajectory(self._check)
        except StopRequested:
            self._stop()

    def finish(self) -> PointResult:
        """Write the last checkpoint, the trajectory and then the result; no process ends before that: the pod that ends
        first may take the others with it."""
        rows = self.state.trajectory if self._final_rows is None else self._final_rows
        text = trajectory_text(rows)
        keep_state = self._lasts() and not self.attempt.task.release_checkpoints_when_done
        if keep_state:
            self.saving.save(self.state)
        self.saving.checkpoints.wait(replacing=not keep_state)
        # Not before: a checkpoint may take longer than a claim is fresh.
        self._reporter.close()
        result = self._result(rows, text)
        if self.attempt.world.is_first:
            self._write(result, text, keep_state=keep_state)
        self.attempt.world.wait()
        return result

    def _write(self, result: PointResult, text: bytes, *, keep_state: bool) -> None:
        store, key = self.attempt.store, self.point.key
        fits = self.ending.outcome is not Outcome.OUT_OF_MEMORY

        def write() -> None:
            # Each time it is tried: another may have taken over while the store was away.
            self.attempt.fence.check()
            # Fewer tokens, trained on other devices, stay trained.
            if fits or not _has_succeeded(store, key):
                write_finished(store, key, text)
                store.write(layout.point_trajectory(key), text)
                store.write_record(layout.point_result(key), result)

        persist(write)
        if not keep_state and fits:
            self.saving.checkpoints.remove_all()
        with self.attempt.log.survived("progress-kept"):
            store.remove(layout.point_progress(key))

    def _result(self, rows: tuple[TrajectoryRow, ...], text: bytes) -> PointResult:
        """The facts of the run as it stands; `text` is the trajectory of `rows`."""
        task, point, world = self.attempt.task, self.point, self.attempt.world
        epochs = self.sequences.order.epochs(self.state.step * point.batch_size)
        return PointResult(
            key=point.key,
            claimant=task.claimant,
            outcome=self.ending.outcome,
            tokens=rows[-1].tokens if rows else 0,
            wanted_tokens=task.tokens,
            steps=self.state.step,
            parameters=self.parameters,
            bytes_per_token=evaluation.bytes_per_token(self.attempt.data, point.mixture),
            diverged_at_tokens=self.ending.diverged_at_tokens,
            loss=rows[-1].loss if rows else None,
            averaged_loss=rows[-1].averaged_loss if rows else None,
            trajectory_sha256=hashlib.sha256(text).hexdigest(),
            evaluations=len(rows),
            accelerator_seconds=self.saving.accelerator_seconds,
            accelerators=0 if world.on_cpu else world.size,
            micro_batch=self.learner.micro_batch,
            time_constants=time_constants(point),
            attempts=self.state.attempts,
            versions=versions(),
            message=self.ending.message or _summary(rows[-1], epochs),
        )

    def close(self) -> None:
        """End all threads, whatever became of the run."""
        self._reporter.close()
        self.saving.checkpoints.close()
        self.sequences.close()
        self._log.close()

    # ---------------------------------------------------------------------------- what it lasts for

    def _lasts(self) -> bool:
        return self.ending.outcome is Outcome.SUCCEEDED

    def _check(self) -> None:
        """Raises StopRequested or Interrupted, in every process at the same place: one that left alone would
        keep the others waiting for it."""
        superseded = self._reporter.superseded
        reason = int(self.attempt.interruption.requested) if superseded is None else SUPERSEDED
        reason = self.attempt.world.largest(reason)
        if reason == SUPERSEDED:
            raise superseded or Interrupted("Superseded", "another attempt took over")
        if reason:
            raise StopRequested

    def _stop(self) -> None:
        """Raises Interrupted once the state is saved, unless the last steps turn out to have diverged."""
        self._read_steps()
        if self._lasts():
            self.saving.save_what_is_new(self.state)
            self.saving.checkpoints.wait()
            raise Interrupted("Interrupted", f"stop requested; saved at {self.tokens} tokens")

    # ------------------------------------------------------------------------------------ its steps

    def _take_step(self) -> None:
        """What it finds out is read at once on a CPU, on an accelerator after many."""
        state = self.state
        with self.stopwatch.timing("data"):
            batch = self.sequences.read(state.step * self.point.batch_size, self.point.batch_size)
        self._unread.append(self.learner.step(batch, self.tokens + self.batch_tokens))
        state.step += 1
        many = len(self._unread) >= (1 if self.attempt.world.on_cpu else STEPS_AT_ONCE)
        at_end = state.step == self.timetable.steps
        if many or at_end or state.step in self.timetable.evaluations:
            self._read_steps()
            if self._lasts() and not at_end:
                self.saving.save_if_due(state)
        self._reporter.note(self.tokens)
        self._log.progress(state, self.tokens)

    def _read_steps(self) -> None:
        """Take what the last steps found out into the state, in order; what came after one that diverged is left
        out."""
        unread, self._unread = self._unread, []
        facts = torch.stack([torch.stack(step) for step in unread]).tolist() if unread else []
        clip = self.point.optimizer.gradient_clip
        for number, (loss, offset, norm) in enumerate(facts, self.state.step - len(facts) + 1):
            self._meter.take_step(loss, norm)
            if self.state.take_step(loss, offset, norm, clip):
                self.ending = Ending.divergence(number * self.batch_tokens)
                return

    # ------------------------------------------------------------------ its evaluations

    def _evaluate(self, check: evaluation.Check) -> TrajectoryRow:
        """Loss of the raw and the averaged weights. A loss that is not finite is a divergence."""
        raw = self._losses(check)
        with self.learner.averaged():
            averaged = self._losses(check)
        row = self.state.evaluated(self.tokens, raw, averaged)
        if row.loss is None:
            self.ending = Ending.divergence(self.tokens)
        self._log.evaluation(row)
        return row

    def _losses(self, check: evaluation.Check) -> evaluation.Losses:
        """Losses of the weights as they are."""
        size, world = self.learner.micro_batch, self.attempt.world
        if world.on_cpu:
            size = max(size, CPU_TOKENS // self.point.sequence_length)
        with self.stopwatch.timing("evaluation"):
            return self._validation.evaluate(self.learner.token_losses, world, size, check)

    def final_trajectory(
        self, check: evaluation.Check = lambda: None
    ) -> tuple[TrajectoryRow, ...]:
        """The trajectory with an evaluation at its very end.

        Unless it is a scheduled one, the state does not get it: a continued run has the very
        trajectory of one that was longer from the start.
        """
        rows = self.state.trajectory
        if not self._lasts() or self.state.is_evaluated:
            return rows
        return (*rows, self._evaluate(check))


def _has_succeeded(store: Store, key: str) -> bool:
    result = stored_result(store, key)
    return result is not None and result.outcome is Outcome.SUCCEEDED


def _network(attempt: Attempt) -> Any:
    """The point's model, in rank 0 with its initial weights."""
    point = attempt.task.point
    if point.initial_weights is None and attempt.world.is_first:
        network = model.build_network(point.model, seed=point.seed)
    else:
        network = model.build_shapes(point.model)
    if point.initial_weights is not None:
        fetched = fetching(attempt.interruption, attempt.log)
        uri, domains = point.initial_weights, sorted(point.mixture)

        def check(folder: Path) -> None:
            check_config(folder, uri, point.sequence_length)
            check_same_tokenizer(folder, uri, attempt.data, domains)

        load_weights(network, uri, attempt.scratch, attempt.world, fetched, check)
    model.check_counts(network.config)
    model.check_fits(
        network.config,
        vocabulary=attempt.data.manifest.vocabulary_size,
        sequence_length=point.sequence_length,
    )
    model.check_trains_reproducibly(network.config)
    attempt.world.of_first(lambda: model.check_computes(network, point.sequence_length))
    return network


# --------------------------------------------------------------------------- where it stands, saved


class Saving:
    """The checkpoints of one run, whose tensors are the learner's."""

    def __init__(
        self, attempt: Attempt, learner: Learner, timetable: Timetable, stopwatch: Stopwatch
    ) -> None:
        task, fence = attempt.task, attempt.fence
        self._attempt, self._learner = attempt, learner
        self._timetable, self._stopwatch = timetable, stopwatch
        self.checkpoints = Checkpoints(
            attempt.store,
            task.point.key,
            task.keep_checkpoints,
            fence.check,
            attempt.log,
            attempt.world,
            attempt.clock,
        )
        self._saved = (0, 0)
        self._saved_at = attempt.clock()
        self._copy_seconds = 0.0
        self._reported: float | None = None
        self._earlier_seconds = 0.0

    @property
    def accelerator_seconds(self) -> float:
        """Accelerator seconds of this attempt and those before it."""
        return self._earlier_seconds + self._stopwatch.seconds * self._attempt.world.size

    def restore(self) -> tuple[TrainingState, dict[str, str]] | None:
        """Continue from the newest checkpoint: its state, and the versions that wrote it; None if there is
        none. Raises OtherLayout."""
        found = self.checkpoints.restore(self._learner.on_host())
        if found is None:
            return None
        state = found.state
        self._learner.restore()
        self.keep_micro_batch(state)
        state.attempts = max(self._attempt.task.claimant.attempt, state.attempts + 1)
        self._earlier_seconds = state.accelerator_seconds
        self._saved = _position(state)
        return state, found.versions

    def keep_micro_batch(self, state: TrainingState) -> None:
        """As before: another micro-batch rounds differently, and one that was halved had to be."""
        before, now = state.micro_batch, self._micro_batch()
        if before is None or before.place != now.place:
            return
        self._learner.limit_micro_batch(before.sequences)
        if before.recompute and not self._learner.recompute:
            self._learner.start_recomputing()

    def _micro_batch(self) -> MicroBatch:
        world = self._attempt.world
        return MicroBatch(
            sequences=self._learner.micro_batch,
            processes=world.size,
            accelerated=not world.on_cpu,
            recompute=self._learner.recompute,
        )

    def save(self, state: TrainingState) -> None:
        """Start to write a checkpoint of where the run stands, which all processes do together. Training stands still
        for the copy alone; the end of a run also waits for the checkpoint before."""
        with self._stopwatch.timing("checkpoint"):
            state.accelerator_seconds = self.accelerator_seconds
            state.micro_batch = self._micro_batch()
            self.checkpoints.wait(replacing=True)
            tokens = state.step * self._timetable.batch_tokens
            began = self._attempt.clock()
            copies = self._learner.copied()
            self._saved, self._saved_at = _position(state), self._attempt.clock()
            self._copy_seconds = self._saved_at - began
            self.checkpoints.save(state, tokens, copies, versions())

    def save_if_due(self, state: TrainingState) -> None:
        """A checkpoint that is due while the one before is still being written is put off, so that a slow
        store does not hold up the run."""
        world = self._attempt.world
        due = self._attempt.clock() - self._saved_at >= self._interval()
        # Rank 0 decides: it has the last of the writing, and its decision is every process's.
        if world.any(world.is_first and due and not self.checkpoints.is_writing):
            self.save(state)

    def _interval(self) -> float:
        """Seconds from one checkpoint to the next; a new one after each that was measured is told in the log."""
        task, attempt, written = self._attempt.task, self._attempt, self.checkpoints.write_seconds
        longest = float(task.checkpoint_seconds)
        if written is None:
            return min(longest, FIRST_SECONDS) if task.preemptions_per_day else longest
        rate = task.preemptions_per_day * task.nodes
        found = Checkpointing(self._copy_seconds, written, attempt.grace_seconds, rate, longest)
        if written != self._reported:
            self._reported = written
            attempt.log.event(
                "checkpoint",
                copy_seconds=found.copy,
                write_seconds=found.write,
                grace_seconds=found.grace,
                interval_seconds=found.interval,
            )
        return found.interval

    def save_what_is_new(self, state: TrainingState) -> None:
        """Save unless the last checkpoint has this step and its evaluation, and could be written."""
        failed = self._attempt.world.any(self.checkpoints.has_failed)
        if failed or _position(state) != self._saved:
            self.save(state)


def _position(state: TrainingState) -> tuple[int, int]:
    """How far the run has come: its steps and its evaluations."""
    return state.step, len(state.trajectory)


# ------------------------------------------------------------------------------------- how it ended


@dataclass(frozen=True)
class Ending:
    """How a run ended, or SUCCEEDED while it lasts."""

    outcome: Outcome
    message: str = ""
    diverged_at_tokens: int | None = None

    @classmethod
    def divergence(cls, tokens: int) -> Ending:
        """Found at so many tokens."""
        return cls(Outcome.DIVERGED, f"diverged at {tokens} tokens", tokens)


NAMED_DOMAINS = 3
"""A summary names so many of those that were read more than once: a corpus may have 64, and a message has its limit."""


def _summary(last: TrajectoryRow, epochs: Mapping[str, float]) -> str:
    repeated = sorted((-passes, name) for name, passes in epochs.items() if passes > 1)
    named = [f"domain {name} was read {-passes:.1f} times" for passes, name in repeated]
    more = len(named) - NAMED_DOMAINS
    if more > 0:
        named[NAMED_DOMAINS:] = [f"and {more} more were read more than once"]
    return "; ".join([f"loss {last.loss:.4f} nats per token at {last.tokens} tokens", *named])
