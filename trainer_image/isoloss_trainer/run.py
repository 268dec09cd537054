"""The training run of one point: build, resume, step, evaluate, save, finish."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import time
from pathlib import Path

import torch

from isoloss_contract import layout
from isoloss_contract.records import DomainLoss, Outcome, PointResult, TrainTask, TrajectoryRow
from isoloss_contract.store import Store
from isoloss_trainer.batches import TrainingSequences
from isoloss_trainer.checkpoint import CheckpointManifest, Checkpoints, persist
from isoloss_trainer.claim import Fence
from isoloss_trainer.evaluation import Loss, ValidationSet, bytes_per_token
from isoloss_trainer.foreign_model import load_weights
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.learner import Learner
from isoloss_trainer.log import Log
from isoloss_trainer.micro_batch import CPU_TOKENS
from isoloss_trainer.model import build_network, check_fits, count_parameters
from isoloss_trainer.reporter import Reporter, trajectory_text
from isoloss_trainer.schedule import Watch, evaluation_steps
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import Interrupted, OutOfMemory
from isoloss_trainer.world import World

LOSSES_AT_ONCE = 16
"""Losses are read from an accelerator this many steps at a time: each reading waits for it."""


def run_point(
    store: Store,
    task: TrainTask,
    data: PreparedData,
    scratch: Path,
    fence: Fence,
    world: World,
    interruption: Interruption,
    log: Log,
) -> PointResult:
    """Train the point to its wanted tokens and write its result (rank 0 does the writing)."""
    run = PointRun(task, data, scratch, world, log)
    keep = task.keep_checkpoints
    checkpoints = Checkpoints(store, task.point.key, keep, fence.check, log)
    reporter = Reporter(store, task, fence, log)
    try:
        run.resume(checkpoints)
        if world.is_first:
            reporter.start(run.tokens, run.rows)
        run.train(checkpoints, reporter, interruption)
        reporter.close()
        return _finish(run, store, checkpoints, fence)
    except OutOfMemory as error:
        reporter.close()
        run.give_up(error.message)
        return _finish(run, store, checkpoints, fence)
    finally:
        reporter.close()
        checkpoints.close()


def _finish(run: PointRun, store: Store, checkpoints: Checkpoints, fence: Fence) -> PointResult:
    """Write the last checkpoint, the trajectory and then the result."""
    task, key = run.task, run.task.point.key
    ended_well = run.outcome is Outcome.SUCCEEDED
    keep_state = ended_well and not task.release_checkpoints_when_done
    rows = run.final_rows()
    text = trajectory_text(rows)
    result = run.result(rows, hashlib.sha256(text).hexdigest())
    if not run.world.is_first:
        return result
    if keep_state:
        run.save(checkpoints)
    checkpoints.wait()
    fence.check()
    persist(lambda: store.write(layout.point_trajectory(key), text))
    persist(lambda: store.write_record(layout.point_result(key), result))
    if not keep_state and run.outcome is not Outcome.OUT_OF_MEMORY:
        checkpoints.remove_all()
    store.remove(layout.point_progress(key))
    return result


class PointRun:
    """All state of a run. `step` and `tokens` count what the weights have seen."""

    def __init__(
        self, task: TrainTask, data: PreparedData, scratch: Path, world: World, log: Log
    ) -> None:
        point = task.point
        self.task, self.world, self._point, self._data, self._log = task, world, point, data, log
        self._started = time.monotonic()
        network = build_network(point.model, seed=point.seed)
        if point.initial_weights is not None:
            load_weights(network, point.initial_weights, scratch, world)
        check_fits(
            network.config,
            vocabulary=data.manifest.vocabulary_size,
            sequence_length=point.sequence_length,
        )
        self.parameters = count_parameters(network)
        self.learner = Learner(network, point, world, task.micro_batch_halvings)
        self.sequences = TrainingSequences(data, point.mixture, point.seed)
        limit = point.evaluation.sequences_per_domain
        self._validation = ValidationSet(data, point.mixture, limit)

        self.batch_tokens = point.batch_size * point.sequence_length
        self.wanted_steps = -(-task.tokens // self.batch_tokens)
        self._evaluation_steps = evaluation_steps(
            point.evaluation, self.batch_tokens, self.wanted_steps
        )
        self.step = 0
        self.rows: tuple[TrajectoryRow, ...] = ()
        self.outcome = Outcome.SUCCEEDED
        self.diverged_at: int | None = None
        self._words = ""
        self._watch = Watch()
        self._unread: list[torch.Tensor] = []
        self._loss_sum, self._loss_steps = 0.0, 0
        self._resumed_tokens = self._saved_step = 0
        self._attempts = task.claimant.attempt
        self._earlier_seconds = 0.0
        self._seconds = {"evaluation": 0.0, "checkpoint": 0.0, "data": 0.0}

    @property
    def tokens(self) -> int:
        """Tokens seen."""
        return self.step * self.batch_tokens

    # ------------------------------------------------------------------------------- the loop

    def train(
        self, checkpoints: Checkpoints, reporter: Reporter, interruption: Interruption
    ) -> None:
        """Step until the wanted tokens are seen or the loss is lost.

        Raises Interrupted after saving where a stop was asked for, without saving where another
        attempt took over.
        """
        saved_at = time.monotonic()
        while self.step < self.wanted_steps and self.outcome is Outcome.SUCCEEDED:
            reporter.check()
            if self.world.any(interruption.requested):
                self._stop(checkpoints)
            self._take_step()
            evaluating = self.step in self._evaluation_steps
            saving = (
                self.world.is_first
                and time.monotonic() - saved_at >= self.task.checkpoint_seconds
                and self.step < self.wanted_steps
            )
            at_end = self.step == self.wanted_steps
            if evaluating or saving or at_end or len(self._unread) >= self._losses_at_once:
                self._read_losses()
            if self.outcome is not Outcome.SUCCEEDED:
                return
            if evaluating:
                self.rows = (*self.rows, self._evaluate())
                self._loss_sum, self._loss_steps = 0.0, 0
                reporter.note(self.tokens, self.rows)
            reporter.note(self.tokens)
            self._report()
            if saving:
                self.save(checkpoints)
                saved_at = time.monotonic()

    def _stop(self, checkpoints: Checkpoints) -> None:
        self._read_losses()
        if self.outcome is not Outcome.SUCCEEDED:
            return
        if self.world.is_first:
            if self.step > self._saved_step:
                self.save(checkpoints)
            checkpoints.wait()
        raise Interrupted("Interrupted", f"asked to stop; saved at {self.tokens} tokens")

    def save(self, checkpoints: Checkpoints) -> None:
        """Begin to write a checkpoint of where the run stands."""
        stalled = checkpoints.save(self.manifest(), self.learner.state())
        self._seconds["checkpoint"] += stalled
        self._saved_step = self.step

    def _take_step(self) -> None:
        started = time.monotonic()
        size = self._point.batch_size
        batch = self.sequences.read(self.step * size, size)
        self._seconds["data"] += time.monotonic() - started
        self._unread.append(self.learner.step(batch, self.tokens + self.batch_tokens))
        self.step += 1

    @property
    def _losses_at_once(self) -> int:
        return 1 if self.world.device.type == "cpu" else LOSSES_AT_ONCE

    def _read_losses(self) -> None:
        """Judge the losses of the last steps, in order."""
        losses = torch.stack(self._unread).tolist() if self._unread else []
        first = self.step - len(losses)
        self._unread = []
        for number, loss in enumerate(losses, first + 1):
            if self._watch.is_lost(loss):
                self.outcome = Outcome.DIVERGED
                self.diverged_at = number * self.batch_tokens
                self._words = f"the loss was lost at {self.diverged_at} tokens"
                return
            self._loss_sum += loss
            self._loss_steps += 1

    def give_up(self, reason: str) -> None:
        """Not even one sequence fits the memory."""
        self.outcome = Outcome.OUT_OF_MEMORY
        self._words = reason

    def _evaluate(self) -> TrajectoryRow:
        """Raw and averaged weights on the validation set."""
        started = time.monotonic()
        raw, raw_domains = self._validate()
        with self.learner.averaged():
            averaged, averaged_domains = self._validate()
        self._seconds["evaluation"] += time.monotonic() - started
        row = TrajectoryRow(
            step=self.step,
            tokens=self.tokens,
            loss=_finite(raw.value),
            loss_standard_error=_finite(raw.standard_error),
            averaged_loss=_finite(averaged.value),
            averaged_loss_standard_error=_finite(averaged.standard_error),
            domains={
                name: DomainLoss(
                    loss=_finite(raw_domains[name].value),
                    standard_error=_finite(raw_domains[name].standard_error),
                    averaged_loss=_finite(averaged_domains[name].value),
                    averaged_standard_error=_finite(averaged_domains[name].standard_error),
                )
                for name in raw_domains
            },
            training_loss=self._loss_sum / self._loss_steps if self._loss_steps else None,
        )
        facts = row.model_dump(exclude={"domains"})
        self._log.event("evaluation", **facts, **self._shares())
        return row

    def _validate(self) -> tuple[Loss, dict[str, Loss]]:
        self.learner.model.eval()
        size = self.learner.micro_batch
        if self.world.device.type == "cpu":
            size = max(size, CPU_TOKENS // self._point.sequence_length)
        losses = self.learner.model.token_losses
        return self._validation.evaluate(losses, self.world, size)

    def _shares(self) -> dict[str, float]:
        """Where the time of this attempt went, and how evenly experts are used."""
        total = max(1e-9, time.monotonic() - self._started)
        shares = {f"{name}_share": seconds / total for name, seconds in self._seconds.items()}
        load = self.learner.balance.take_load()
        return shares if load is None else {**shares, "expert_load": load}

    def _report(self) -> None:
        seconds = time.monotonic() - self._started
        loss = self._loss_sum / self._loss_steps if self._loss_steps else None
        self._log.progress(
            "train",
            self.tokens,
            self.task.tokens,
            loss=loss,
            tokens_per_second=(self.tokens - self._resumed_tokens) / seconds,
        )

    # --------------------------------------------------------------------------- stop and go

    def resume(self, checkpoints: Checkpoints) -> None:
        """Go on from the newest checkpoint where there is one."""
        found = checkpoints.newest()
        facts = {
            "key": self._point.key,
            "wanted": self.task.tokens,
            "device": str(self.world.device),
            "processes": self.world.size,
            "micro_batch": self.learner.micro_batch,
            "parameters": self.parameters.active,
        }
        if found is None:
            self._log.event("start", tokens=0, **facts)
            return
        manifest, state = found
        self.learner.restore(state)
        self.step = manifest.step
        self.rows = manifest.trajectory
        self._loss_sum = manifest.training_loss_sum
        self._loss_steps = manifest.training_loss_steps
        self._watch = Watch(manifest.first_loss, manifest.high_steps)
        self._earlier_seconds = manifest.accelerator_seconds
        self._attempts = max(self._attempts, manifest.attempts + 1)
        self._resumed_tokens = self.tokens
        self._saved_step = self.step
        self._log.event("resume", tokens=self.tokens, **facts)

    def manifest(self) -> CheckpointManifest:
        """The rest of the training state."""
        return CheckpointManifest(
            key=self._point.key,
            step=self.step,
            tokens=self.tokens,
            files={},
            trajectory=self.rows,
            training_loss_sum=self._loss_sum,
            training_loss_steps=self._loss_steps,
            first_loss=self._watch.first_loss,
            high_steps=self._watch.high_steps,
            accelerator_seconds=self.accelerator_seconds,
            attempts=self._attempts,
        )

    # --------------------------------------------------------------------------- the result

    @property
    def accelerator_seconds(self) -> float:
        """Of this attempt and those before it."""
        return self._earlier_seconds + (time.monotonic() - self._started) * self.world.size

    def final_rows(self) -> tuple[TrajectoryRow, ...]:
        """The trajectory with an evaluation at its very end."""
        at_end = self.rows and self.rows[-1].step == self.step
        if self.outcome is not Outcome.SUCCEEDED or at_end:
            return self.rows
        return (*self.rows, self._evaluate())

    def result(self, rows: tuple[TrajectoryRow, ...], trajectory_sha256: str) -> PointResult:
        """The facts of the run as they stand."""
        return PointResult(
            key=self._point.key,
            outcome=self.outcome,
            tokens=rows[-1].tokens if rows else 0,
            wanted_tokens=self.task.tokens,
            steps=self.step,
            parameters=self.parameters,
            bytes_per_token=bytes_per_token(self._data, self._point.mixture),
            diverged_at_tokens=self.diverged_at,
            trajectory_sha256=trajectory_sha256,
            evaluations=len(rows),
            accelerator_seconds=self.accelerator_seconds,
            accelerators=self.world.size if self.world.device.type == "cuda" else 0,
            micro_batch=self.learner.micro_batch,
            attempts=self._attempts,
            versions=versions(),
            message=self._message(rows),
        )

    def _message(self, rows: tuple[TrajectoryRow, ...]) -> str:
        if self._words:
            return self._words
        epochs = self.sequences.order.epochs(self.step * self._point.batch_size)
        words = [f"loss {rows[-1].loss:.4f} nats per token at {rows[-1].tokens} tokens"]
        words += [
            f"domain {name} was read {passes:.1f} times"
            for name, passes in epochs.items()
            if passes > 1
        ]
        return "; ".join(words)


def versions() -> dict[str, str]:
    """What computed a result."""
    names = ("torch", "transformers", "isoloss")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None
