"""What a run reports to those who watch it: lines in the log, and the curves alongside them."""

from __future__ import annotations

from isoloss_contract.records import TrajectoryRow
from isoloss_trainer.attempt import Attempt, Stopwatch, TrainingState
from isoloss_trainer.figures import Meter
from isoloss_trainer.kernels import computing_type, describe_kernels
from isoloss_trainer.learner import Learner
from isoloss_trainer.optimizer import learning_rate
from isoloss_trainer.recorder import (
    Recorder,
    curves_of_evaluation,
    curves_of_training,
    wanted_curves,
)


class RunLog:
    """Writes them; `active_parameters` are the model's that take part in a token."""

    def __init__(
        self,
        attempt: Attempt,
        learner: Learner,
        meter: Meter,
        stopwatch: Stopwatch,
        active_parameters: int,
    ) -> None:
        self._attempt, self._log, self._learner = attempt, attempt.log, learner
        self._meter, self._stopwatch = meter, stopwatch
        self._active_parameters = active_parameters
        self._recorder = Recorder(None, self._log)

    def start(self, tokens: int, *, resumed: bool, written_by: dict[str, str] | None) -> None:
        """A run that has seen `tokens` begins, or resumes from a checkpoint `written_by` these versions."""
        task, world = self._attempt.task, self._attempt.world
        self._recorder = Recorder(wanted_curves(self._attempt), self._log)
        self._meter.start(tokens, self._stopwatch.seconds)
        kernels = describe_kernels(
            self._learner.model.network,
            task.point.sequence_length,
            computing_type(task.point.precision),
        )
        self._log.event(
            "resume" if resumed else "start",
            tokens=tokens,
            key=task.point.key,
            wanted=task.tokens,
            device=world.device,
            processes=world.size,
            deterministic=task.deterministic,
            written_by=written_by,
            micro_batch=self._learner.micro_batch,
            recompute=self._learner.recompute,
            parameters=self._active_parameters,
            **kernels,
        )

    def progress(self, state: TrainingState, tokens: int) -> None:
        """Where the run stands, if it is time to say so."""
        if not self._log.is_due:
            return
        task = self._attempt.task
        found = self._meter.figures(
            state.step,
            tokens,
            task.tokens,
            learning_rate(task.point.learning_rate, tokens, task.point.optimizer.warmup_tokens),
            self._stopwatch.seconds_without("evaluation", "cooldown"),
        )
        facts = found.facts()
        self._log.progress("train", tokens, found.wanted_tokens, words=found.words(), **facts)
        self._recorder.record(tokens, curves_of_training(found))

    def evaluation(self, row: TrajectoryRow) -> None:
        """What one found, with the experts' load since the one before."""
        facts = row.model_dump(exclude={"domains"})
        load = self._learner.balance.take_load()
        experts = {} if load is None else {"expert_load": load}
        self._log.event("evaluation", **facts, **self._stopwatch.shares(), **experts)
        self._recorder.record(row.tokens, curves_of_evaluation(row, experts))

    def cooldown(self, row: TrajectoryRow) -> None:
        """What the copy found that cooled down from the row's evaluation."""
        facts = {"tokens": row.cooled_tokens, "loss": row.cooled_loss}
        self._log.event("cooldown", start=row.tokens, **facts, **self._stopwatch.shares())
        if row.cooled_tokens is not None and row.cooled_loss is not None:
            curve = {"validation/cooled_loss": row.cooled_loss}
            self._recorder.record(row.cooled_tokens, curve)

    def close(self) -> None:
        """Finish the curves."""
        self._recorder.close()
