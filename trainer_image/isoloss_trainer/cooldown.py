"""Copies of a run whose learning rate decays to zero, beside the run itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from isoloss_contract.records import CooldownConfig, PointConfig, TrajectoryRow
from isoloss_trainer.batches import TrainingSequences
from isoloss_trainer.ending import StopRequested
from isoloss_trainer.evaluation import Check
from isoloss_trainer.evaluator import Evaluator
from isoloss_trainer.learner import Learner
from isoloss_trainer.reporter import Reporter
from isoloss_trainer.result import with_cooled
from isoloss_trainer.saving import Saving
from isoloss_trainer.stopwatch import Stopwatch
from isoloss_trainer.timetable import Timetable
from isoloss_trainer.training_state import TrainingState


class Cooldowns:
    """Cools the learner down and takes it back: the run goes on with the bits it had."""

    def __init__(
        self,
        point: PointConfig,
        learner: Learner,
        sequences: TrainingSequences,
        timetable: Timetable,
        evaluator: Evaluator,
        saving: Saving,
        stopwatch: Stopwatch,
    ) -> None:
        self._config, self._size = point.evaluation.cooldown, point.batch_size
        self._learner, self._sequences, self._timetable = learner, sequences, timetable
        self._evaluator, self._saving, self._stopwatch = evaluator, saving, stopwatch

    def extend(
        self, row: TrajectoryRow, state: TrainingState, reporter: Reporter, check: Check
    ) -> TrajectoryRow:
        """The row with the losses of a copy that cools down from here, where one is due."""
        steps = self._timetable.cooldowns.get(state.step)
        if self._config is None or steps is None:
            return row
        with self._fork(state):
            with self._stopwatch.timing("cooldown"):
                self._cool_down(rate_factors(self._config, steps), state, reporter, check)
            losses = self._evaluator.losses(check)
        return with_cooled(row, (state.step + steps) * self._timetable.batch_tokens, losses)

    @contextmanager
    def _fork(self, state: TrainingState) -> Iterator[None]:
        """What the block does to the learner is undone.

        What it had is in the store, too, before the block begins to change it, so that an attempt that is
        killed in a long cooldown leaves nothing to train again but that. In none but the ways below does a
        run go on or save anything afterwards.
        """
        self._saving.save(state)
        try:
            yield
        except StopRequested:
            self._undo()
            raise
        self._undo()

    def _undo(self) -> None:
        self._learner.restore()
        self._learner.balance.take_load()

    def _cool_down(
        self, factors: list[float], state: TrainingState, reporter: Reporter, check: Check
    ) -> None:
        """Take a step from here on for each of the `factors`, the state's counters left as they are. A copy
        that diverges has no finite loss at its end."""
        step_tokens, before = self._timetable.batch_tokens, state.cooldown_tokens
        for number, factor in enumerate(factors):
            check()
            step = state.step + number
            batch = self._sequences.read(step * self._size, self._size)
            self._learner.step(batch, (step + 1) * step_tokens, factor)
            reporter.note(state.step * step_tokens, before + (number + 1) * step_tokens)


def rate_factors(config: CooldownConfig, steps: int) -> list[float]:
    """What each of the `steps` of a cooldown multiplies the learning rate by.

    The shape in the middle of each step: so the rate summed over tokens is nearly the same at every batch
    size, and no step is lost to a rate of zero. Linear decay and 1 - sqrt(x): Hägele et al. 2405.18392.
    """
    shares = ((number + 0.5) / steps for number in range(steps))
    if config.shape == "Linear":
        return [1.0 - share for share in shares]
    return [1.0 - math.sqrt(share) for share in shares]
