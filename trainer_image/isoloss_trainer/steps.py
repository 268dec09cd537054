"""A run's optimizer steps, and what they find out."""

from __future__ import annotations

import torch

from isoloss_trainer.attempt import Attempt
from isoloss_trainer.batches import TrainingSequences
from isoloss_trainer.figures import Meter
from isoloss_trainer.learner import Learner, StepFacts
from isoloss_trainer.profiling import Recordings
from isoloss_trainer.stopwatch import Stopwatch
from isoloss_trainer.timetable import Timetable
from isoloss_trainer.training_state import TrainingState

STEPS_AT_ONCE = 16
"""What steps found out is read from an accelerator at once: each reading waits for it."""


class Steps:
    """Takes steps, and reads what they found out: on a CPU after each, on an accelerator after many."""

    def __init__(
        self,
        attempt: Attempt,
        learner: Learner,
        sequences: TrainingSequences,
        timetable: Timetable,
        meter: Meter,
        stopwatch: Stopwatch,
    ) -> None:
        self._learner, self._sequences, self._timetable = learner, sequences, timetable
        self._meter, self._stopwatch = meter, stopwatch
        self._size = attempt.task.point.batch_size
        self._clip = attempt.task.point.optimizer.gradient_clip
        self._at_once = 1 if attempt.world.on_cpu else STEPS_AT_ONCE
        self._recordings = Recordings(attempt)
        self._unread: list[StepFacts] = []

    def take(self, state: TrainingState) -> None:
        """The next one."""
        with self._recordings.step(state.step + 1):
            with self._stopwatch.timing("data"):
                batch = self._sequences.read(state.step * self._size, self._size)
            tokens = (state.step + 1) * self._timetable.batch_tokens
            self._unread.append(self._learner.step(batch, tokens))
        state.step += 1

    def is_reading_due(self, state: TrainingState) -> bool:
        """Whether to wait for what the last steps found out; the same in every process."""
        at_end = state.step == self._timetable.steps
        many = len(self._unread) >= self._at_once
        return many or at_end or state.step in self._timetable.evaluations

    def read(self, state: TrainingState) -> int | None:
        """Take what the last steps found out into the state, in order. Returns the tokens at the step that
        diverged, where one did; what came after it is left out."""
        unread, self._unread = self._unread, []
        facts = torch.stack([torch.stack(step) for step in unread]).tolist() if unread else []
        for number, found in enumerate(facts, state.step - len(facts) + 1):
            loss, offset, norm = found
            self._meter.take_step(loss, norm)
            if state.take_step(loss, offset, norm, self._clip):
                return number * self._timetable.batch_tokens
        return None

    def close(self) -> None:
        """Write what is being recorded."""
        self._recordings.close()
