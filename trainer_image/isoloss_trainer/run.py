"""The training run of one point: build, resume, step, evaluate, save, finish."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from isoloss_contract import layout
from isoloss_contract.records import Outcome, PointResult, TrajectoryRow
from isoloss_contract.trajectories import write_finished
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.attention import head_shape, preferred_kernels
from isoloss_trainer.attention_choice import choose_attention
from isoloss_trainer.attention_kernels import AttentionKernel
from isoloss_trainer.batches import TrainingSequences
from isoloss_trainer.checkpoint import persist
from isoloss_trainer.compile_cache import CompileCache, facts_of_run
from isoloss_trainer.cooldown import Cooldowns
from isoloss_trainer.ending import Ending, StopRequested, raise_if_ending
from isoloss_trainer.evaluation import Check
from isoloss_trainer.evaluator import Evaluator
from isoloss_trainer.figures import Meter
from isoloss_trainer.foreign_model import load_weights
from isoloss_trainer.initialization import initialize
from isoloss_trainer.learner import Learner
from isoloss_trainer.model import (
    build_network,
    build_shapes,
    check_fits,
    check_trains_reproducibly,
    count_parameters,
)
from isoloss_trainer.reporter import Reporter, trajectory_text
from isoloss_trainer.result import point_result
from isoloss_trainer.run_log import RunLog
from isoloss_trainer.saving import Saving
from isoloss_trainer.steps import Steps
from isoloss_trainer.stopwatch import Stopwatch
from isoloss_trainer.termination import Interrupted, OutOfMemory
from isoloss_trainer.timetable import Timetable
from isoloss_trainer.training_state import TrainingState
from isoloss_trainer.utilisation import flops_per_token, peak_flops


def run_point(attempt: Attempt) -> PointResult:
    """Train the point to its wanted tokens and write its result (rank 0 does the writing)."""
    # From now on: building and restoring may take longer than a claim is fresh.
    with Reporter(attempt) as reporter:
        run = PointRun(attempt, reporter)
        try:
            run.resume()
            run.train()
            return run.finish()
        except OutOfMemory as error:  # in every process
            run.ending = Ending(Outcome.OUT_OF_MEMORY, error.message)
            return run.finish()
        finally:
            run.close()


class PointRun:
    """A run: `state` and the learner's tensors are what it has become, all else follows from the task."""

    def __init__(self, attempt: Attempt, reporter: Reporter | None = None) -> None:
        """Build model, learner and data. Nothing is reported without `reporter`. Raises BadConfiguration and BadData where they do not fit together."""
        self.attempt, self.point = attempt, attempt.task.point
        point, data, world = self.point, attempt.data, attempt.world
        self.stopwatch = Stopwatch()
        self.timetable = Timetable.of(attempt.task)
        self.state = TrainingState(attempts=attempt.task.claimant.attempt)
        self.ending = Ending(Outcome.SUCCEEDED)
        self._final_rows: tuple[TrajectoryRow, ...] | None = None

        network = _network(attempt)
        self.parameters = count_parameters(network)
        flops = flops_per_token(network.config, self.parameters, point.sequence_length)
        meter = Meter(flops, peak_flops(world, point.precision), world)
        halvings = attempt.task.micro_batch_halvings
        self.learner = Learner(network, point, world, halvings, self._check)
        self.sequences = TrainingSequences(data, point.mixture, point.seed, world)

        learner, timetable, stopwatch = self.learner, self.timetable, self.stopwatch
        self.saving = Saving(attempt, learner, timetable, stopwatch)
        self._reporter = reporter or Reporter(attempt)
        self._log = RunLog(attempt, learner, meter, stopwatch, self.parameters.active)
        self._steps = Steps(attempt, learner, self.sequences, timetable, meter, stopwatch)
        self._evaluator = Evaluator(attempt, learner, stopwatch)
        self._cooldowns = Cooldowns(
            point, learner, self.sequences, timetable, self._evaluator, self.saving, stopwatch
        )
        self._compile_cache = CompileCache(attempt, self._compiled_for)
        self._kernels = ExitStack()

    @property
    def batch_tokens(self) -> int:
        """Tokens of one step."""
        return self.timetable.batch_tokens

    @property
    def tokens(self) -> int:
        """Tokens that the weights have seen."""
        return self.state.step * self.batch_tokens

    def resume(self) -> None:
        """Continue from the newest checkpoint where there is one. Raises OtherLayout."""
        restored, versions = self.saving.restore() or (None, None)
        if restored is not None:
            self.state = restored
        self._choose_kernels()
        self._compile_cache.load()
        self.learner.on_host()
        self._log.start(self.tokens, resumed=restored is not None, written_by=versions)
        if self.attempt.world.is_first:
            self._reporter.begin(self.tokens, self.state.cooldown_tokens, self.state.trajectory)

    def train(self) -> None:
        """Step until the wanted tokens are seen and evaluated, or the run diverges.

        What is due follows from the state alone, so that a run that was stopped anywhere, also in
        the middle of an evaluation, continues as if it had not been. Raises Interrupted, after
        saving where a stop was requested, without saving where another attempt took over.
        """
        try:
            while self._lasts():
                self._check()
                if self.timetable.is_evaluation_due(self.state):
                    self._take_evaluation()
                elif self.state.step < self.timetable.steps:
                    self._take_step()
                else:
                    break
            self._final_rows = self.final_trajectory(self._check)
        except StopRequested:
            self._stop()

    def finish(self) -> PointResult:
        """Write the last checkpoint, the trajectory and then the result."""
        self._reporter.close()
        rows = self.state.trajectory if self._final_rows is None else self._final_rows
        text = trajectory_text(rows)
        result = point_result(self, rows, text)
        keep_state = self._lasts() and not self.attempt.task.release_checkpoints_when_done
        if keep_state:
            self.saving.save(self.state)
        if not self.attempt.world.is_first:
            return result
        store, key = self.attempt.store, self.point.key
        self.saving.wait()
        self.attempt.fence.check()
        persist(lambda: write_finished(store, key, text))
        persist(lambda: store.write(layout.point_trajectory(key), text))
        persist(lambda: store.write_record(layout.point_result(key), result))
        if not keep_state and self.ending.outcome is not Outcome.OUT_OF_MEMORY:
            self.saving.remove_all()
        store.remove(layout.point_progress(key))
        return result

    def close(self) -> None:
        """End all threads, whatever became of the run."""
        self._kernels.close()
        self._reporter.close()
        self.saving.close()
        self.sequences.close()
        self._steps.close()
        self._log.close()

    # ------------------------------------------------------------------------------- its parts

    def _choose_kernels(self) -> None:
        """Of attention, until the run is closed: before anything is compiled."""
        attempt, point = self.attempt, self.point
        config = self.learner.model.config
        shape = head_shape(config, point.sequence_length, point.precision)
        self.state.attention = choose_attention(attempt, shape, self.state.attention)
        chosen = self._attention_kernel
        if chosen is not None:
            self.learner.use_attention(chosen)
        deterministic = attempt.task.deterministic
        self._kernels.enter_context(
            preferred_kernels(attempt.world, deterministic=deterministic, chosen=chosen)
        )

    @property
    def _attention_kernel(self) -> AttentionKernel | None:
        return None if self.state.attention is None else self.state.attention.kernel

    def _lasts(self) -> bool:
        return self.ending.outcome is Outcome.SUCCEEDED

    def _check(self) -> None:
        """Raises StopRequested or Interrupted."""
        raise_if_ending(self.attempt, self._reporter)

    def _take_step(self) -> None:
        self._steps.take(self.state)
        if self._steps.is_reading_due(self.state):
            self._read_steps()
            if self._lasts() and self.state.step < self.timetable.steps:
                self.saving.save_if_due(self.state)
        self._reporter.note(self.tokens, self.state.cooldown_tokens)
        self._log.progress(self.state, self.tokens)

    def _read_steps(self) -> None:
        diverged_at_tokens = self._steps.read(self.state)
        if diverged_at_tokens is not None:
            self.ending = Ending.divergence(diverged_at_tokens)

    def _take_evaluation(self) -> None:
        """A scheduled one: it joins the trajectory once a copy has cooled down from it, where one is due."""
        row = self._evaluate(self._check)
        if self._lasts():
            row = self._cooldowns.extend(row, self.state, self._reporter, self._check)
        if row.cooled_tokens is not None:
            self._log.cooldown(row)
        self.state.take_evaluation(row)
        self._reporter.note(self.tokens, self.state.cooldown_tokens, self.state.trajectory)

    def _evaluate(self, check: Check) -> TrajectoryRow:
        """A loss that is not finite is a divergence."""
        row = self._evaluator.row(self.state, self.tokens, check)
        if row.loss is None:
            self.ending = Ending.divergence(self.tokens)
        self._log.evaluation(row)
        self._compile_cache.save()
        return row

    def final_trajectory(self, check: Check = lambda: None) -> tuple[TrajectoryRow, ...]:
        """The trajectory with an evaluation at its very end.

        Unless it is a scheduled one, the state does not get it: a continued run has the very
        trajectory of one that was longer from the start.
        """
        rows = self.state.trajectory
        evaluated = rows and rows[-1].step == self.state.step
        if not self._lasts() or evaluated:
            return rows
        return (*rows, self._evaluate(check))

    def _stop(self) -> None:
        """Raises Interrupted once the state is saved, unless the last steps turn out to have diverged."""
        self._read_steps()
        if self._lasts():
            self.saving.save_what_is_new(self.state)
            self.saving.wait()
            raise Interrupted("Interrupted", f"stop requested; saved at {self.tokens} tokens")

    def _compiled_for(self) -> dict[str, Any]:
        kernel = self._attention_kernel
        return facts_of_run(
            self.point,
            micro_batch=self.learner.micro_batch,
            recompute=self.learner.recompute,
            processes=self.attempt.world.size,
            deterministic=self.attempt.task.deterministic,
            attention=None if kernel is None else str(kernel),
        )


def _network(attempt: Attempt) -> Any:
    """The point's model, in rank 0 with its initial weights."""
    point = attempt.task.point
    random = point.initial_weights is None and attempt.world.is_first
    if random:
        network = build_network(point.model, seed=point.seed)
        initialize(network, point)
    else:
        network = build_shapes(point.model)
    if point.initial_weights is not None:
        load_weights(network, point.initial_weights, attempt.scratch, attempt.world)
    check_fits(
        network.config,
        vocabulary=attempt.data.manifest.vocabulary_size,
        sequence_length=point.sequence_length,
    )
    check_trains_reproducibly(network.config)
    return network
