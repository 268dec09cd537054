"""What a run has become so far, apart from its tensors: all that a later attempt continues from. Its timetable says when it
is evaluated, when copies of it cool down, and when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from isoloss_contract.records import Finite, Record, TrainTask, TrajectoryRow
from isoloss_contract.schedule import cooldown_steps, evaluation_steps

RISE_NATS = 1.0
"""A running mean of the loss this far above its lowest value so far …"""
RISE_STEPS = 100
"""… for this many steps in a row means divergence."""
MEAN_STEPS = 20
"""Time constant of that mean: at a scatter of 1 nat per step it scatters by 0.16 nats."""


class DivergenceWatch(Record, frozen=False):
    """Decides step by step whether the training loss has diverged.

    A mean, because single steps of small batches scatter by more than RISE_NATS; compared with its
    lowest value, because a run that has learned something may diverge to far below its first loss.
    """

    mean: Finite | None = None
    lowest: Finite | None = None
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


class MicroBatch(Record):
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


class TrainingState(Record, frozen=False):
    """Counters, trajectory and divergence watch. Timers and reporting are not part of it."""

    step: int = Field(default=0, ge=0)
    """Optimizer steps that the weights have taken."""
    trajectory: tuple[TrajectoryRow, ...] = ()
    """Scheduled evaluations only: without the one at the end of a run."""
    training_loss_sum: Finite = 0.0
    """Over the steps since the last scheduled evaluation."""
    logit_offset_sum: Finite = 0.0
    gradient_norm_sum: Finite = 0.0
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

    @property
    def cooldown_tokens(self) -> int:
        """Tokens that cooldowns took in addition to those of the run."""
        return sum(row.cooldown_tokens for row in self.trajectory)

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

    def take_evaluation(self, row: TrajectoryRow) -> None:
        """Extend the trajectory by a scheduled evaluation."""
        self.trajectory = (*self.trajectory, row)
        self.training_loss_sum = self.logit_offset_sum = self.gradient_norm_sum = 0.0
        self.clipped_steps = self.training_loss_steps = 0


@dataclass(frozen=True)
class Timetable:
    """Steps are counted from 1. A run may be continued, so that all of it depends on the task alone."""

    batch_tokens: int
    """Tokens of one step."""
    steps: int
    """To reach the wanted tokens."""
    evaluations: Set[int]
    """The steps after which there is one."""
    cooldowns: Mapping[int, int]
    """The steps after which a copy cools down, with the number of steps that it takes."""

    @classmethod
    def of(cls, task: TrainTask) -> Timetable:
        """For the tokens that the task wants."""
        point = task.point
        batch_tokens = point.batch_size * point.sequence_length
        steps = -(-task.tokens // batch_tokens)
        warmup = point.optimizer.warmup_tokens
        return cls(
            batch_tokens=batch_tokens,
            steps=steps,
            evaluations=evaluation_steps(point.evaluation, batch_tokens, steps),
            cooldowns=cooldown_steps(point.evaluation, batch_tokens, steps, warmup),
        )

    def is_evaluation_due(self, state: TrainingState) -> bool:
        """Whether one is scheduled where the run stands, and not in its trajectory."""
        return state.step in self.evaluations and not state.is_evaluated
