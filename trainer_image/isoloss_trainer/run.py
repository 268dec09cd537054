"""The training run of one point: build, resume, step, evaluate, save, finish."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from isoloss_contract import layout
from isoloss_contract.records import Outcome, PointResult, TrajectoryRow
from isoloss_contract.schedule import cooldown_steps, evaluation_steps
from isoloss_contract.trajectories import write_finished
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.batches import TrainingSequences
from isoloss_trainer.checkpoint import Checkpoints, persist
from isoloss_trainer.compile_cache import CompileCache, facts_of_run
from isoloss_trainer.cooldown import rate_factors
from isoloss_trainer.evaluation import Check, ValidationSet
from isoloss_trainer.figures import Figures, Meter
from isoloss_trainer.foreign_model import load_weights
from isoloss_trainer.initialization import initialize
from isoloss_trainer.kernels import describe_kernels
from isoloss_trainer.learner import Learner, StepFacts
from isoloss_trainer.micro_batch import CPU_TOKENS
from isoloss_trainer.model import (
    build_network,
    check_fits,
    check_trains_reproducibly,
    count_parameters,
)
from isoloss_trainer.named_tensors import Parts
from isoloss_trainer.optimizer import learning_rate
from isoloss_trainer.profiling import Recordings
from isoloss_trainer.recorders import (
    Recorders,
    curves_of_evaluation,
    curves_of_training,
    wanted_recorders,
)
from isoloss_trainer.reporter import Reporter, trajectory_text
from isoloss_trainer.result import (
    Ending,
    Losses,
    point_result,
    trajectory_row,
    versions,
    with_cooled,
)
from isoloss_trainer.stopwatch import Stopwatch
from isoloss_trainer.termination import Interrupted, OutOfMemory
from isoloss_trainer.training_state import MicroBatch, TrainingState
from isoloss_trainer.utilisation import flops_per_token, peak_flops

STEPS_AT_ONCE = 16
"""What steps found out is read from an accelerator at once: each reading waits for it."""
SUPERSEDED = 2
"""Reason to end that outranks a stop request: what another attempt writes must stand."""


class _StopRequested(Exception):
    """SIGTERM reached one of the processes."""


def run_point(attempt: Attempt) -> PointResult:
    """Train the point to its wanted tokens and write its result (rank 0 does the writing)."""
    task, store, fence, log = attempt.task, attempt.store, attempt.fence, attempt.log
    run = PointRun(attempt)
    checkpoints = Checkpoints(store, task.point.key, task.keep_checkpoints, fence.check, log)
    reporter = Reporter(store, task, fence, log)
    try:
        run.resume(checkpoints)
        if attempt.world.is_first:
            reporter.start(run.tokens, run.cooldown_tokens, run.state.trajectory)
        run.train(checkpoints, reporter)
        reporter.close()
        return run.finish(checkpoints)
    except OutOfMemory as error:
        reporter.close()
        run.ending = Ending(Outcome.OUT_OF_MEMORY, error.message)
        return run.finish(checkpoints)
    finally:
        reporter.close()
        checkpoints.close()
        run.sequences.close()
        run.recordings.close()
        run.recorders.close()


class PointRun:
    """A run: `state` and the learner's tensors are what it has become, all else follows from the task."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.point = attempt, attempt.task.point
        self.stopwatch = Stopwatch()
        self.state = TrainingState(attempts=attempt.task.claimant.attempt)
        self.ending = Ending(Outcome.SUCCEEDED)
        self._build()
        self._schedule()
        self._unread: list[StepFacts] = []
        self._final_rows: tuple[TrajectoryRow, ...] | None = None
        self._saved_step = 0
        self._earlier_seconds = 0.0
        self._saved_at = time.monotonic()

    def _build(self) -> None:
        """Model, learner and data. Raises BadConfiguration and BadData where they do not fit together."""
        point, data, world = self.point, self.attempt.data, self.attempt.world
        network = build_network(point.model, seed=point.seed)
        initialize(network, point)
        if point.initial_weights is not None:
            load_weights(network, point.initial_weights, self.attempt.scratch, world)
        check_fits(
            network.config,
            vocabulary=data.manifest.vocabulary_size,
            sequence_length=point.sequence_length,
        )
        check_trains_reproducibly(network.config)
        self.parameters = count_parameters(network)
        self.learner = Learner(network, point, world, self.attempt.task.micro_batch_halvings)
        self.sequences = TrainingSequences(data, point.mixture, point.seed, world)
        limit = point.evaluation.sequences_per_domain
        self._validation = ValidationSet(data, point.mixture, limit)
        flops = flops_per_token(network.config, self.parameters, point.sequence_length)
        self._meter = Meter(flops, peak_flops(world, point.precision), world)
        self.recorders = Recorders({}, self.attempt.log)
        self.recordings = Recordings(self.attempt)
        self._compile_cache = CompileCache(self.attempt, self._compiled_for)

    def _schedule(self) -> None:
        """A run may be continued, so that its schedule depends on the wanted tokens alone."""
        self.batch_tokens = self.point.batch_size * self.point.sequence_length
        self.wanted_steps = -(-self.attempt.task.tokens // self.batch_tokens)
        self._evaluation_steps = evaluation_steps(
            self.point.evaluation, self.batch_tokens, self.wanted_steps
        )
        self._cooldown_steps = cooldown_steps(
            self.point.evaluation,
            self.batch_tokens,
            self.wanted_steps,
            self.point.optimizer.warmup_tokens,
        )

    @property
    def tokens(self) -> int:
        """Tokens that the weights have seen."""
        return self.state.step * self.batch_tokens

    @property
    def cooldown_tokens(self) -> int:
        """Tokens that cooldowns took beside them."""
        return sum(row.cooldown_tokens for row in self.state.trajectory)

    @property
    def accelerator_seconds(self) -> float:
        """Of this attempt and those before it."""
        return self._earlier_seconds + self.stopwatch.seconds * self.attempt.world.size

    # ------------------------------------------------------------------------------- the loop

    def resume(self, checkpoints: Checkpoints) -> None:
        """Continue from the newest checkpoint where there is one: rank 0 finds and reads it for all.

        Raises OtherLayout.
        """
        world = self.attempt.world
        found = checkpoints.newest() if world.is_first else None
        text = world.text_of_first(found.manifest.state.model_dump_json() if found else "")
        if text:
            self.state = TrainingState.model_validate_json(text)
            self.learner.restore(found.parts if found else None)
            self._keep_micro_batch()
            self.state.attempts = max(self.attempt.task.claimant.attempt, self.state.attempts + 1)
            self._earlier_seconds = self.state.accelerator_seconds
            self._saved_step = self.state.step
        self.recorders = Recorders(wanted_recorders(self.attempt, self.tokens), self.attempt.log)
        self._compile_cache.load()
        self._meter.start(self.tokens, self.stopwatch.seconds)
        self.learner.reserve_staging()
        self.attempt.log.event(
            "resume" if text else "start",
            tokens=self.tokens,
            key=self.point.key,
            wanted=self.attempt.task.tokens,
            device=world.device,
            processes=world.size,
            deterministic=self.attempt.task.deterministic,
            written_by=found.manifest.versions if found else None,
            micro_batch=self.learner.micro_batch,
            recompute=self.learner.recompute,
            parameters=self.parameters.active,
            **describe_kernels(
                self.learner.model.network,
                self.point.sequence_length,
                compiled=not world.on_cpu,
            ),
        )

    def _keep_micro_batch(self) -> None:
        """As before: another micro-batch rounds differently, and one that was halved had to be."""
        before, now = self.state.micro_batch, self._micro_batch()
        if before is None or before.place != now.place:
            return
        self.learner.limit_micro_batch(before.sequences)
        if before.recompute and not self.learner.recompute:
            self.learner.start_recomputing()

    def _micro_batch(self) -> MicroBatch:
        world = self.attempt.world
        return MicroBatch(
            sequences=self.learner.micro_batch,
            processes=world.size,
            accelerated=not world.on_cpu,
            recompute=self.learner.recompute,
        )

    def _compiled_for(self) -> dict[str, Any]:
        return facts_of_run(
            self.point,
            micro_batch=self.learner.micro_batch,
            recompute=self.learner.recompute,
            processes=self.attempt.world.size,
            deterministic=self.attempt.task.deterministic,
        )

    def train(self, checkpoints: Checkpoints, reporter: Reporter) -> None:
        """Step until the wanted tokens are seen and evaluated, or the run diverges.

        What is due follows from the state alone, so that a run that was stopped anywhere, also in
        the middle of an evaluation, continues as if it had not been. Raises Interrupted, after
        saving where a stop was requested, without saving where another attempt took over.
        """

        def check() -> None:
            self._raise_if_ending(reporter)

        try:
            while self.ending.outcome is Outcome.SUCCEEDED:
                check()
                if self._is_evaluation_due():
                    row = self._evaluate(check)
                    if self.ending.outcome is Outcome.SUCCEEDED:
                        row = self._with_cooldown(row, checkpoints, reporter, check)
                    self.state.take_evaluation(row)
                    reporter.note(self.tokens, self.cooldown_tokens, self.state.trajectory)
                elif self.state.step < self.wanted_steps:
                    self._step()
                    if self._is_reading_due():
                        self._read_steps()
                        self._save_if_due(checkpoints)
                    reporter.note(self.tokens, self.cooldown_tokens)
                    self._log_progress()
                else:
                    break
            self._final_rows = self.final_trajectory(check)
        except _StopRequested:
            self._stop(checkpoints)

    def finish(self, checkpoints: Checkpoints) -> PointResult:
        """Write the last checkpoint, the trajectory and then the result."""
        rows = self.state.trajectory if self._final_rows is None else self._final_rows
        text = trajectory_text(rows)
        result = point_result(self, rows, text)
        keep_state = (
            self.ending.outcome is Outcome.SUCCEEDED
            and not self.attempt.task.release_checkpoints_when_done
        )
        if keep_state:
            self._save(checkpoints)
        if not self.attempt.world.is_first:
            return result
        store, key = self.attempt.store, self.point.key
        checkpoints.wait()
        self.attempt.fence.check()
        persist(lambda: write_finished(store, key, text))
        persist(lambda: store.write(layout.point_trajectory(key), text))
        persist(lambda: store.write_record(layout.point_result(key), result))
        if not keep_state and self.ending.outcome is not Outcome.OUT_OF_MEMORY:
            checkpoints.remove_all()
        store.remove(layout.point_progress(key))
        return result

    # ------------------------------------------------------------------------------- cooldowns

    def _with_cooldown(
        self, row: TrajectoryRow, checkpoints: Checkpoints, reporter: Reporter, check: Check
    ) -> TrajectoryRow:
        """The row with the losses of a copy that cools down from here, where one is due."""
        config, steps = self.point.evaluation.cooldown, self._cooldown_steps.get(self.state.step)
        if config is None or steps is None:
            return row
        with self._fork(checkpoints):
            with self.stopwatch.timing("cooldown"):
                self._cool_down(rate_factors(config, steps), reporter, check)
            with self.stopwatch.timing("evaluation"):
                losses = self._losses(check)
        cooled = with_cooled(row, self.tokens + steps * self.batch_tokens, losses)
        facts = {"tokens": cooled.cooled_tokens, "loss": cooled.cooled_loss}
        self.attempt.log.event("cooldown", start=self.tokens, **facts, **self.stopwatch.shares())
        if cooled.cooled_tokens is not None and cooled.cooled_loss is not None:
            curve = {"validation/cooled_loss": cooled.cooled_loss}
            self.recorders.record(cooled.cooled_tokens, curve)
        return cooled

    @contextmanager
    def _fork(self, checkpoints: Checkpoints) -> Iterator[None]:
        """What the block does to the learner is undone: the run goes on with the bits it had.

        They are in the store, too, before the block begins to change them, so that an attempt that
        is killed in a long cooldown leaves nothing to train again but that. In none but the ways below does
        a run go on or save anything afterwards.
        """
        parts = self._save(checkpoints)
        try:
            yield
        except _StopRequested:
            self._undo(parts)
            raise
        self._undo(parts)

    def _undo(self, parts: Parts | None) -> None:
        self.learner.restore(parts)
        self.learner.balance.take_load()

    def _cool_down(self, factors: list[float], reporter: Reporter, check: Check) -> None:
        """Take a step from here on for each of the `factors`, the state's counters left as they are. A copy
        that diverges has no finite loss at its end."""
        size, before = self.point.batch_size, self.cooldown_tokens
        for number, factor in enumerate(factors):
            check()
            step = self.state.step + number
            batch = self.sequences.read(step * size, size)
            self.learner.step(batch, (step + 1) * self.batch_tokens, factor)
            reporter.note(self.tokens, before + (number + 1) * self.batch_tokens)

    # ------------------------------------------------------------------------------- its parts

    def _step(self) -> None:
        size = self.point.batch_size
        with self.recordings.step(self.state.step + 1):
            with self.stopwatch.timing("data"):
                batch = self.sequences.read(self.state.step * size, size)
            self._unread.append(self.learner.step(batch, self.tokens + self.batch_tokens))
        self.state.step += 1

    def _raise_if_ending(self, reporter: Reporter) -> None:
        """Raises _StopRequested or Interrupted, in every process at the same step: one that left
        alone would keep the others waiting for it."""
        reason = int(self.attempt.interruption.requested)
        if reporter.superseded is not None:
            reason = SUPERSEDED
        reason = self.attempt.world.largest(reason)
        if reason == SUPERSEDED:
            raise reporter.superseded or Interrupted("Superseded", "another attempt took over")
        if reason:
            raise _StopRequested

    def _is_evaluation_due(self) -> bool:
        rows = self.state.trajectory
        evaluated = bool(rows) and rows[-1].step == self.state.step
        return self.state.step in self._evaluation_steps and not evaluated

    def _is_reading_due(self) -> bool:
        """Whether to wait for the losses of the last steps; the same in every process."""
        many = len(self._unread) >= (1 if self.attempt.world.on_cpu else STEPS_AT_ONCE)
        at_end = self.state.step == self.wanted_steps
        return many or at_end or self.state.step in self._evaluation_steps

    def _read_steps(self) -> None:
        """Take what the last steps found out into the state, in order, up to a divergence."""
        unread, self._unread = self._unread, []
        facts = torch.stack([torch.stack(step) for step in unread]).tolist() if unread else []
        clip = self.point.optimizer.gradient_clip
        for number, found in enumerate(facts, self.state.step - len(facts) + 1):
            loss, offset, norm = found
            self._meter.take_step(loss, norm)
            if self.state.take_step(loss, offset, norm, clip):
                self._set_diverged(number * self.batch_tokens)
                return

    def _set_diverged(self, tokens: int) -> None:
        self.ending = Ending(Outcome.DIVERGED, f"diverged at {tokens} tokens", tokens)

    def _stop(self, checkpoints: Checkpoints) -> None:
        self._read_steps()
        if self.ending.outcome is not Outcome.SUCCEEDED:
            return
        if self.state.step > self._saved_step:
            self._save(checkpoints)
        checkpoints.wait()
        raise Interrupted("Interrupted", f"stop requested; saved at {self.tokens} tokens")

    def _save_if_due(self, checkpoints: Checkpoints) -> None:
        """A checkpoint that is due while the one before is still being written is put off, so that a slow
        store does not hold up the run."""
        world = self.attempt.world
        lasting = self.ending.outcome is Outcome.SUCCEEDED and self.state.step < self.wanted_steps
        due = time.monotonic() - self._saved_at >= self.attempt.task.checkpoint_seconds
        # Rank 0 decides: it alone writes, and its decision is every process's.
        if lasting and world.any(world.is_first and due and not checkpoints.is_writing):
            self._save(checkpoints)

    def _save(self, checkpoints: Checkpoints) -> Parts | None:
        """Start to write a checkpoint of where the run stands; rank 0 gets its tensors, which hold until the
        next. All processes give rank 0 their part of it; training stands still for that alone: the end of
        a run also waits for the checkpoint before."""
        with self.stopwatch.timing("checkpoint"):
            self.state.accelerator_seconds = self.accelerator_seconds
            self.state.micro_batch = self._micro_batch()
            checkpoints.wait()
            parts = self.learner.copied()
            if parts is not None:
                checkpoints.save(self.state, self.tokens, parts, versions())
        self._saved_step, self._saved_at = self.state.step, time.monotonic()
        return parts

    def final_trajectory(self, check: Check = lambda: None) -> tuple[TrajectoryRow, ...]:
        """The trajectory with an evaluation at its very end.

        Unless it is a scheduled one, the state does not get it: a continued run has the very
        trajectory of one that was longer from the start.
        """
        rows = self.state.trajectory
        evaluated = rows and rows[-1].step == self.state.step
        if self.ending.outcome is not Outcome.SUCCEEDED or evaluated:
            return rows
        return (*rows, self._evaluate(check))

    def _evaluate(self, check: Check) -> TrajectoryRow:
        """Raw and averaged weights on the validation set; a loss that is not finite is a divergence."""
        with self.stopwatch.timing("evaluation"):
            raw = self._losses(check)
            with self.learner.averaged():
                averaged = self._losses(check)
        row = trajectory_row(self.state, self.tokens, raw, averaged)
        if row.loss is None:
            self._set_diverged(self.tokens)
        facts = row.model_dump(exclude={"domains"})
        load = self.learner.balance.take_load()
        experts = {} if load is None else {"expert_load": load}
        self.attempt.log.event("evaluation", **facts, **self.stopwatch.shares(), **experts)
        self.recorders.record(self.tokens, curves_of_evaluation(row, experts))
        self._compile_cache.save()
        return row

    def _losses(self, check: Check) -> Losses:
        """Of the weights as they are, on the validation set."""
        model, world = self.learner.model.eval(), self.attempt.world
        size = self.learner.micro_batch
        if world.on_cpu:
            size = max(size, CPU_TOKENS // self.point.sequence_length)
        return self._validation.evaluate(model.token_losses, world, size, check)

    def _log_progress(self) -> None:
        log = self.attempt.log
        if not log.is_due:
            return
        found = self._figures()
        log.progress_in_words(
            "train", self.tokens, found.wanted_tokens, found.words(), found.facts()
        )
        self.recorders.record(self.tokens, curves_of_training(found))

    def _figures(self) -> Figures:
        warmup = self.point.optimizer.warmup_tokens
        return self._meter.figures(
            self.state.step,
            self.tokens,
            self.attempt.task.tokens,
            learning_rate(self.point.learning_rate, self.tokens, warmup),
            self.stopwatch.seconds_without("evaluation", "cooldown"),
        )
