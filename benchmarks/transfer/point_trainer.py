"""Trains and measures in this process what the operator trains and measures in pods.

What is in the store is not trained again, and a run that was stopped continues.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoloss.laws import Run
from isoloss.runs import Weights, run_from_point
from isoloss_contract import layout
from isoloss_contract.records import (
    Claimant,
    DataManifest,
    EvaluateConfig,
    EvaluateTask,
    EvaluationResult,
    Outcome,
    PointConfig,
    PointResult,
    PrepareTask,
    TrainTask,
    TrajectoryRow,
)
from isoloss_contract.store import Store
from isoloss_contract.trajectories import read_finished
from isoloss_trainer.checkpoint import Checkpoints
from isoloss_trainer.learner import Learner
from isoloss_trainer.log import Log
from isoloss_trainer.model import build_network
from isoloss_trainer.prepare import prepare
from isoloss_trainer.shards import PreparedData, TrainingSequences
from isoloss_trainer.termination import Diverged, Interruption
from isoloss_trainer.train import train
from isoloss_trainer.world import World

CHECKPOINT_SECONDS = 60
"""A run that is killed loses no more."""


@dataclass(frozen=True)
class Trained:
    """A run to one token count."""

    point: PointConfig
    result: PointResult
    rows: Sequence[TrajectoryRow]

    def run(self, name: str, weights: Weights, tokenizer: str | None = None) -> Run:
        """As the law engine sees it, by the losses of those weights. `tokenizer` is a digest."""
        return run_from_point(
            name,
            self.point,
            self.result.parameters,
            self.rows,
            weights=weights,
            bytes_per_token=self.result.bytes_per_token,
            diverged=self.result.outcome is Outcome.DIVERGED,
            finished=True,
            tokenizer=tokenizer,
        )


class _DecayingLearner(Learner):
    """One whose schedule is multiplied by `factor`."""

    factor = 1.0

    def learning_rate(self, tokens: int) -> float:
        return self.factor * super().learning_rate(tokens)


class PointTrainer:
    """Everything is kept in the corpus's store; `scratch` may be lost."""

    def __init__(
        self, who: str, corpus: PrepareTask, scratch: Path, interruption: Interruption
    ) -> None:
        """Prepare the corpus unless it is there. `who` claims the points. Raises Interrupted."""
        scratch.mkdir(parents=True, exist_ok=True)
        self._scratch, self._interruption = scratch, interruption
        self._claimant = Claimant(sweep_uid=who, attempt=1)
        self._log = Log(Path(os.devnull).open("w"))  # noqa: SIM115 (as long as the process)
        prepare(corpus, scratch, interruption, self._log)
        self.store = Store(corpus.store_uri)
        self._data_uri = f"{corpus.store_uri}/{layout.data_folder(corpus.config.key)}"
        path = layout.data_manifest(corpus.config.key)
        self.manifest = self.store.read_record(path, DataManifest)

    def trained(self, point: PointConfig, tokens: int, *, kept: bool = False) -> Trained:
        """Train to `tokens` unless that or more is done; its training state stays if `kept`. Raises Interrupted."""
        task = TrainTask(
            point=point,
            tokens=tokens,
            store_uri=self.store.uri,
            data_uri=self._data_uri,
            claimant=self._claimant,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            release_checkpoints_when_done=not kept,
        )
        # Divergence is a measurement like any other: the run has a result and ends early.
        with suppress(Diverged):
            train(task, self._scratch, self._interruption, self._log)
        return self.read(
            point, self.store.read_record(layout.point_result(point.key), PointResult)
        )

    def read(self, point: PointConfig, result: PointResult) -> Trained:
        """A run that has a result, perhaps an earlier one than the newest."""
        return Trained(
            point, result, read_finished(self.store, point.key, result.trajectory_sha256)
        )

    def decayed(self, point: PointConfig, steps: int) -> Any:
        """A network with the point's newest weights after `steps` more, over which the learning rate falls to zero."""
        learner = _DecayingLearner(build_network(point.model, seed=0), point, World())
        found = Checkpoints(
            self.store, point.key, keep=1, check=self._interruption.check, log=self._log
        ).restore(learner.on_host())
        assert found is not None, f"point {point.key} was not trained with kept=True"
        learner.restore()
        data = PreparedData(self._data_uri, self._scratch)
        sequences = TrainingSequences(data, point.mixture, point.seed)
        first, size = found.state.step, point.batch_size
        for number in range(steps):
            self._interruption.check()
            # The middle of each step: no step is lost to a rate of zero.
            learner.factor = 1.0 - (number + 0.5) / steps
            batch = sequences.read((first + number) * size, size)
            learner.step(batch, (first + number + 1) * size * point.sequence_length)
        sequences.close()
        network = build_network(point.model, seed=0)
        network.load_state_dict(learner.model.network.state_dict())
        return network

    def evaluated(self, config: EvaluateConfig) -> EvaluationResult:
        """A checkpoint's loss as an evaluate task measures it, unless that is done. Raises Interrupted."""
        from isoloss_trainer.evaluate import evaluate

        task = EvaluateTask(config=config, store_uri=self.store.uri, data_uri=self._data_uri)
        evaluate(task, self._scratch, self._interruption, self._log)
        return self.store.read_record(layout.evaluation_result(config.key), EvaluationResult)
