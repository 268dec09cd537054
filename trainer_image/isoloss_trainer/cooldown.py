"""Copies of a run whose learning rate decays to zero, beside the run itself."""

from __future__ import annotations

import math

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
        """The row with the losses of a copy that cools down from here, where one is due.

        A copy that has to stop is saved as it is, and goes on in the next attempt. One that is killed begins again:
        where it began is in the store before that. A copy that diverges has no finite loss at its end.
        """
        steps = self._timetable.cooldowns.get(state.step)
        if self._config is None or steps is None:
            return row
        self._saving.save_what_is_new(state)
        step_tokens = self._timetable.batch_tokens
        fork = state.step * step_tokens
        taken = ((self._saving.restore_cooling(state) or fork) - fork) // step_tokens
        try:
            with self._stopwatch.timing("cooldown"):
                for factor in rate_factors(self._config, steps)[taken:]:
                    check()
                    step = state.step + taken
                    batch = self._sequences.read(step * self._size, self._size)
                    self._learner.step(batch, (step + 1) * step_tokens, factor)
                    taken += 1
                    reporter.note(fork, state.cooldown_tokens + taken * step_tokens)
            losses = self._evaluator.losses(check)
        except StopRequested:
            self._saving.save_cooling(state, fork + taken * step_tokens)
            raise
        self._learner.restore()
        self._learner.balance.take_load()
        return with_cooled(row, fork + steps * step_tokens, losses)


def rate_factors(config: CooldownConfig, steps: int) -> list[float]:
    """What each of the `steps` of a cooldown multiplies the learning rate by.

    The shape in the middle of each step: so the rate summed over tokens is nearly the same at every batch
    size, and no step is lost to a rate of zero. Linear decay and 1 - sqrt(x): Hägele et al. 2405.18392.
    """
    shares = ((number + 0.5) / steps for number in range(steps))
    if config.shape == "Linear":
        return [1.0 - share for share in shares]
    return [1.0 - math.sqrt(share) for share in shares]
