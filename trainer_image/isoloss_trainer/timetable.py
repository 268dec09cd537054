"""When a run is evaluated, when copies of it cool down, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from isoloss_contract.records import TrainTask
from isoloss_contract.schedule import cooldown_steps, evaluation_steps
from isoloss_trainer.training_state import TrainingState


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
        rows = state.trajectory
        evaluated = bool(rows) and rows[-1].step == state.step
        return state.step in self.evaluations and not evaluated
