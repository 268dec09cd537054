"""Evaluates a run where it stands: its weights, and their average."""

from __future__ import annotations

from isoloss_contract.records import TrajectoryRow
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.evaluation import Check, ValidationSet
from isoloss_trainer.learner import Learner
from isoloss_trainer.micro_batch import CPU_TOKENS
from isoloss_trainer.result import Losses, trajectory_row
from isoloss_trainer.stopwatch import Stopwatch
from isoloss_trainer.training_state import TrainingState


class Evaluator:
    """Computes losses on the point's validation set. Raises BadData where a domain is too small for one."""

    def __init__(self, attempt: Attempt, learner: Learner, stopwatch: Stopwatch) -> None:
        point = attempt.task.point
        self._learner, self._stopwatch, self._world = learner, stopwatch, attempt.world
        self._length = point.sequence_length
        limit = point.evaluation.sequences_per_domain
        self._validation = ValidationSet(attempt.data, point.mixture, limit)

    def row(self, state: TrainingState, tokens: int, check: Check) -> TrajectoryRow:
        """An evaluation of the raw and the averaged weights after `tokens`."""
        with self._stopwatch.timing("evaluation"):
            raw = self._losses(check)
            with self._learner.averaged():
                averaged = self._losses(check)
        return trajectory_row(state, tokens, raw, averaged)

    def losses(self, check: Check) -> Losses:
        """Of the weights as they are."""
        with self._stopwatch.timing("evaluation"):
            return self._losses(check)

    def _losses(self, check: Check) -> Losses:
        size = self._learner.micro_batch
        if self._world.on_cpu:
            size = max(size, CPU_TOKENS // self._length)
        return self._validation.evaluate(self._learner.token_losses, self._world, size, check)
