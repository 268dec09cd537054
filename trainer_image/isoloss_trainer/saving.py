"""Saves where a run stands, and finds where an earlier attempt left it."""

from __future__ import annotations

import time

from isoloss_trainer.attempt import Attempt, MicroBatch, Stopwatch, Timetable, TrainingState
from isoloss_trainer.checkpoint import Checkpoints
from isoloss_trainer.learner import Learner
from isoloss_trainer.result import versions


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
        )
        self._saved = (0, 0)
        self._saved_at = time.monotonic()
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
        self._saved = _standing(state)
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
        """Start to write a checkpoint of where the run stands, which all processes do together; the learner keeps
        it on its host until the next. Training stands still for the copy alone; the end of a run also waits for
        the checkpoint before."""
        with self._stopwatch.timing("checkpoint"):
            state.accelerator_seconds = self.accelerator_seconds
            state.micro_batch = self._micro_batch()
            self.checkpoints.wait()
            tokens = state.step * self._timetable.batch_tokens
            self.checkpoints.save(state, tokens, self._learner.copied(), versions())
        self._saved, self._saved_at = _standing(state), time.monotonic()

    def save_cooling(self, state: TrainingState, tokens: int) -> None:
        """Write a checkpoint of the learner as a copy of the run at `state` that has cooled down up to `tokens`, and
        wait until it is written."""
        state.accelerator_seconds = self.accelerator_seconds
        tensors = self._learner.tensors()
        self.checkpoints.save(state, tokens, tensors, versions(), cooling=True)
        self.checkpoints.wait()

    def restore_cooling(self, state: TrainingState) -> int | None:
        """Continue with the copy of the run at `state` whose cooldown an earlier attempt had to leave: the tokens that
        it has seen. None if there is no such copy: the learner stands where the run does."""
        found = self._learner.filled(
            lambda tensors: self.checkpoints.restore(tensors, cooling_from=state.step)
        )
        if found is None:
            self._learner.restore()
            return None
        self._earlier_seconds = max(self._earlier_seconds, found.state.accelerator_seconds)
        return found.tokens

    def save_if_due(self, state: TrainingState) -> None:
        """A checkpoint that is due while the one before is still being written is put off, so that a slow
        store does not hold up the run."""
        world = self._attempt.world
        due = time.monotonic() - self._saved_at >= self._attempt.task.checkpoint_seconds
        # Rank 0 decides: it has the last of the writing, and its decision is every process's.
        if world.any(world.is_first and due and not self.checkpoints.is_writing):
            self.save(state)

    def save_what_is_new(self, state: TrainingState) -> None:
        """Save unless the last checkpoint has this step and its evaluation, which may have taken a cooldown."""
        if _standing(state) != self._saved:
            self.save(state)


def _standing(state: TrainingState) -> tuple[int, int]:
    """How far the run has come: its steps and its evaluations."""
    return state.step, len(state.trajectory)
