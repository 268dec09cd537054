"""The training run of one point: build, resume, step, evaluate, save, finish."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import time

import torch

from isoloss import layout
from isoloss.contract import (
    DomainLoss,
    Outcome,
    ParameterCounts,
    PointResult,
    TrainTask,
    TrajectoryRow,
)
from isoloss.store import Store
from isoloss_trainer.averaging import WeightAverage
from isoloss_trainer.batches import TrainingSequences
from isoloss_trainer.checkpoint import CheckpointManifest, Checkpoints, State, persist
from isoloss_trainer.claim import Fence
from isoloss_trainer.evaluation import Loss, ValidationSet, bytes_per_token
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.log import Log
from isoloss_trainer.model import LanguageModel, build_network, check_fits, count_parameters
from isoloss_trainer.optimizer import AdamW, learning_rate
from isoloss_trainer.parameters import FlatParameters
from isoloss_trainer.reporter import Reporter, trajectory_text
from isoloss_trainer.schedule import Watch, evaluation_steps
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import Interrupted

CPU_MICRO_BATCH_TOKENS = 4096


def run_point(
    store: Store,
    task: TrainTask,
    data: PreparedData,
    fence: Fence,
    interruption: Interruption,
    log: Log,
) -> PointResult:
    """Train the point to its wanted tokens and write its result."""
    run = PointRun(task, data, log)
    checkpoints = Checkpoints(store, task.point.key, task.keep_checkpoints, fence.check, log)
    reporter = Reporter(store, task, fence, log)
    try:
        run.resume(checkpoints)
        reporter.start(run.tokens)
        run.train(checkpoints, reporter, interruption)
        reporter.close()
        return _finish(run, store, checkpoints, fence)
    finally:
        reporter.close()
        checkpoints.close()


def _finish(run: PointRun, store: Store, checkpoints: Checkpoints, fence: Fence) -> PointResult:
    """Write the last checkpoint, the trajectory and then the result."""
    task, key = run.task, run.task.point.key
    keep_state = not (run.diverged_at or task.release_checkpoints_when_done)
    if keep_state:
        checkpoints.save(run.manifest(), run.state())
    rows = run.final_rows()
    text = trajectory_text(rows)
    result = run.result(rows, hashlib.sha256(text).hexdigest())
    checkpoints.wait()
    fence.check()
    persist(lambda: store.write(layout.point_trajectory(key), text))
    persist(lambda: store.write_record(layout.point_result(key), result))
    if not keep_state:
        checkpoints.remove_all()
    store.remove(layout.point_progress(key))
    return result


class PointRun:
    """All state of a run. `step` and `tokens` count what the weights have seen."""

    def __init__(self, task: TrainTask, data: PreparedData, log: Log) -> None:
        point = task.point
        self.task, self._point, self._data, self._log = task, point, data, log
        self._started = time.monotonic()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        network = build_network(point.model, seed=point.seed)
        check_fits(
            network.config,
            vocabulary=data.manifest.vocabulary_size,
            sequence_length=point.sequence_length,
        )
        self.parameters: ParameterCounts = count_parameters(network)
        self.model = LanguageModel(network.to(self.device), point.sequence_length)
        compute = torch.bfloat16 if point.precision == "bf16" else torch.float32
        self._flat = FlatParameters(self.model, compute)
        self._optimizer = AdamW(point.optimizer, self._flat.master)
        self._average = WeightAverage(self._flat.master, point.evaluation.averaging_tokens)
        self.sequences = TrainingSequences(data, point.mixture, point.seed)
        limit = point.evaluation.sequences_per_domain
        self._validation = ValidationSet(data, point.mixture, limit)

        self.batch_tokens = point.batch_size * point.sequence_length
        self.wanted_steps = -(-task.tokens // self.batch_tokens)
        self.micro_batch = self._first_micro_batch()
        self._evaluation_steps = evaluation_steps(
            point.evaluation, self.batch_tokens, self.wanted_steps
        )
        self.step = 0
        self.rows: tuple[TrajectoryRow, ...] = ()
        self.diverged_at: int | None = None
        self._watch = Watch()
        self._loss_sum, self._loss_steps = 0.0, 0
        self._resumed_tokens = self._saved_step = 0
        self._attempts = task.claimant.attempt
        self._earlier_seconds = 0.0
        self._evaluation_seconds = self._stalled_seconds = 0.0

    @property
    def tokens(self) -> int:
        """Tokens seen."""
        return self.step * self.batch_tokens

    def _first_micro_batch(self) -> int:
        fitting = max(1, CPU_MICRO_BATCH_TOKENS // self._point.sequence_length)
        return max(1, min(self._point.batch_size, fitting) >> self.task.micro_batch_halvings)

    # ------------------------------------------------------------------------------- the loop

    def train(
        self, checkpoints: Checkpoints, reporter: Reporter, interruption: Interruption
    ) -> None:
        """Step until the wanted tokens are seen or the loss is lost.

        Raises Interrupted after saving where a stop was asked for, without saving where another
        attempt took over.
        """
        saved_at = time.monotonic()
        while self.step < self.wanted_steps and self.diverged_at is None:
            reporter.check()
            if interruption.requested:
                if self.step > self._saved_step:
                    checkpoints.save(self.manifest(), self.state())
                checkpoints.wait()
                message = f"asked to stop; saved at {self.tokens} tokens"
                raise Interrupted("Interrupted", message)
            self._take_step()
            if self.diverged_at is not None:
                return
            if self.step in self._evaluation_steps:
                self.rows = (*self.rows, self._evaluate())
                self._loss_sum, self._loss_steps = 0.0, 0
                reporter.note(self.tokens, self.rows)
            reporter.note(self.tokens)
            self._report()
            due = time.monotonic() - saved_at >= self.task.checkpoint_seconds
            if due and self.step < self.wanted_steps:
                self._stalled_seconds += checkpoints.save(self.manifest(), self.state())
                saved_at, self._saved_step = time.monotonic(), self.step

    def _take_step(self) -> None:
        """One optimizer step over one batch, a micro-batch at a time."""
        point = self._point
        batch = self.sequences.read(self.step * point.batch_size, point.batch_size)
        self._flat.clear_gradient()
        loss = 0.0
        for part in batch.split(self.micro_batch):
            part = part.to(self.device, non_blocking=True)
            summed = self.model.summed_loss(part[:, :-1], part[:, 1:], 1.0 / self.batch_tokens)
            summed.backward()  # type: ignore[no-untyped-call]
            self._flat.collect_gradient()
            loss += float(summed.detach())
        after = self.tokens + self.batch_tokens
        if self._watch.is_lost(loss):
            self.diverged_at = after
            return
        warmup = point.optimizer.warmup_tokens
        self._optimizer.step(
            self._flat.gradient, learning_rate(point.learning_rate, after, warmup)
        )
        self._flat.publish()
        self._average.update(self._flat.master, after, self.batch_tokens)
        self.step += 1
        self._loss_sum += loss
        self._loss_steps += 1

    def _evaluate(self) -> TrajectoryRow:
        """Raw and averaged weights on the validation set."""
        started = time.monotonic()
        raw, raw_domains = self._validate()
        self._flat.swap(self._average.weights)
        try:
            averaged, averaged_domains = self._validate()
        finally:
            self._flat.swap(self._average.weights)
        self._evaluation_seconds += time.monotonic() - started
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
        self._log.event("evaluation", **facts)
        return row

    def _validate(self) -> tuple[Loss, dict[str, Loss]]:
        size = max(self.micro_batch, CPU_MICRO_BATCH_TOKENS // self._point.sequence_length, 1)
        return self._validation.evaluate(self.model.token_losses, self.device, size)

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
        if found is None:
            self._log.event("start", tokens=0, wanted=self.task.tokens, device=str(self.device))
            return
        manifest, state = found
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        self._flat.publish()
        self.step = manifest.step
        self.rows = manifest.trajectory
        self._loss_sum = manifest.training_loss_sum
        self._loss_steps = manifest.training_loss_steps
        self._watch = Watch(manifest.first_loss, manifest.high_steps)
        self._earlier_seconds = manifest.accelerator_seconds
        self._attempts = max(self._attempts, manifest.attempts + 1)
        self._resumed_tokens = self.tokens
        self._saved_step = self.step
        self._log.event("resume", tokens=self.tokens, wanted=self.task.tokens)

    def state(self) -> State:
        """The tensors of the training state."""
        return {
            "weights": self._flat.master,
            "averaged_weights": self._average.weights,
            "first_moment": self._optimizer.first_moment,
            "second_moment": self._optimizer.second_moment,
            "optimizer_steps": self._optimizer.steps,
        }

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
        return self._earlier_seconds + time.monotonic() - self._started

    def final_rows(self) -> tuple[TrajectoryRow, ...]:
        """The trajectory with an evaluation at its very end."""
        at_end = self.rows and self.rows[-1].step == self.step
        if self.diverged_at is not None or at_end:
            return self.rows
        return (*self.rows, self._evaluate())

    def result(self, rows: tuple[TrajectoryRow, ...], trajectory_sha256: str) -> PointResult:
        """The facts of the run as they stand."""
        return PointResult(
            key=self._point.key,
            outcome=Outcome.SUCCEEDED if self.diverged_at is None else Outcome.DIVERGED,
            tokens=rows[-1].tokens if rows else 0,
            wanted_tokens=self.task.tokens,
            steps=self.step,
            parameters=self.parameters,
            bytes_per_token=bytes_per_token(self._data, self._point.mixture),
            diverged_at_tokens=self.diverged_at,
            trajectory_sha256=trajectory_sha256,
            evaluations=len(rows),
            accelerator_seconds=self.accelerator_seconds,
            accelerators=1 if self.device.type == "cuda" else 0,
            micro_batch=self.micro_batch,
            attempts=self._attempts,
            versions=versions(),
            message=self._message(rows),
        )

    def _message(self, rows: tuple[TrajectoryRow, ...]) -> str:
        if self.diverged_at is not None:
            return f"the loss was lost at {self.diverged_at} tokens"
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
