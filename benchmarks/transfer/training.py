"""Runs and measures points with the trainer itself; what is in the store is not trained again."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.transfer.design import MIXTURES as PRETRAINING
from benchmarks.transfer.design import (
    OPTIMIZER,
    SEQUENCE_LENGTH,
    TARGET,
    Checkpoint,
    Design,
    Place,
    Size,
)
from isoloss.laws import Run
from isoloss.runs import run_from_point
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
)
from isoloss_contract.store import Store
from isoloss_contract.trajectories import read_finished
from isoloss_trainer.export import Weights, trained_network
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.log import Log
from isoloss_trainer.prepare import prepare
from isoloss_trainer.termination import Diverged
from isoloss_trainer.train import train

CLAIMANT = Claimant(sweep_uid="bench-transfer", attempt=1)
PRETRAINING_SEED = 1
"""Pre-training reads its domains in another order than the grids do."""


class Workshop:
    """Trains, saves and measures; checkpoints are in `folder`, all else in the task's store."""

    def __init__(
        self, design: Design, folder: Path, corpus: PrepareTask, interruption: Interruption
    ) -> None:
        self.design, self._interruption = design, interruption
        self._folder, self._scratch = folder, folder / "scratch"
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._log = Log(Path(os.devnull).open("w"))  # noqa: SIM115 (as long as the process)
        prepare(corpus, self._scratch, interruption, self._log)
        self._store_uri = corpus.store_uri
        self._store = Store(corpus.store_uri)
        self._data_uri = f"{corpus.store_uri}/{layout.data_folder(corpus.config.key)}"
        path = layout.data_manifest(corpus.config.key)
        self._manifest = self._store.read_record(path, DataManifest)

    # -------------------------------------------------------------------------------- grids

    def from_scratch(self, size: Size, place: Place) -> Run:
        """A run of the sweep, which is the control, too."""
        return self._trained(
            self._point(size, place, {TARGET: 1.0}), self.design.scratch_tokens, kept=False
        )

    def continued(self, checkpoint: Checkpoint, place: Place) -> Run:
        """A continued run of a checkpoint with fresh optimizer state, to the largest budget."""
        point = self._point(
            checkpoint.size, place, {TARGET: 1.0}, initial_weights=self._uri(checkpoint)
        )
        return self._trained(point, self.design.budgets[-1], kept=False)

    def _point(
        self,
        size: Size,
        place: Place,
        mixture: dict[str, float],
        *,
        seed: int = 0,
        initial_weights: str | None = None,
    ) -> PointConfig:
        return PointConfig(
            data_digest=self._manifest.digest,
            mixture=mixture,
            model=size.model,
            optimizer=OPTIMIZER,
            learning_rate=place.rate,
            batch_size=place.batch,
            sequence_length=SEQUENCE_LENGTH,
            seed=seed,
            evaluation=self.design.evaluation(continued=initial_weights is not None),
            precision="float32",
            initial_weights=initial_weights,
        )

    def _trained(self, point: PointConfig, tokens: int, *, kept: bool) -> Run:
        """Train to `tokens` unless that is done; the trajectory of the averaged weights."""
        task = TrainTask(
            point=point,
            tokens=tokens,
            store_uri=self._store_uri,
            data_uri=self._data_uri,
            claimant=CLAIMANT,
            release_checkpoints_when_done=not kept,
        )
        # Divergence is a measurement like any other: the run has a result and ends early.
        with suppress(Diverged):
            train(task, self._scratch, self._interruption, self._log)
        result = self._store.read_record(layout.point_result(point.key), PointResult)
        rows = read_finished(self._store, point.key, result.trajectory_sha256)
        return run_from_point(
            point.key,
            point,
            result.parameters,
            rows,
            bytes_per_token=result.bytes_per_token,
            diverged=result.outcome is Outcome.DIVERGED,
            finished=True,
        )

    # -------------------------------------------------------------------------------- checkpoints

    def provide(self, checkpoint: Checkpoint) -> None:
        """Pre-train the checkpoint and save its weights, unless they are there.

        Averaged weights stand in for a learning rate that decayed, which published checkpoints had; raw ones
        tell what the average does.
        Checkpoints of one text are one run: the shorter ones are saved on the way to the longer.
        """
        for tokens in sorted(self.design.pretraining_tokens):
            if tokens <= checkpoint.tokens:
                self._provide(replace(checkpoint, tokens=tokens))

    def _provide(self, checkpoint: Checkpoint) -> None:
        folder = self._path(checkpoint)
        if folder.exists():
            return
        point = self._point(
            checkpoint.size,
            self.design.pretraining,
            PRETRAINING[checkpoint.text],
            seed=PRETRAINING_SEED,
        )
        self._trained(point, checkpoint.tokens, kept=True)
        temporary = folder.with_suffix(".new")
        shutil.rmtree(temporary, ignore_errors=True)
        weights: Weights = "raw" if checkpoint.raw else "averaged"
        _, network = trained_network(self._store, point, weights, self._log)
        network.save_pretrained(temporary)
        temporary.rename(folder)

    def initial_loss(self, checkpoint: Checkpoint) -> EvaluationResult:
        """The checkpoint's loss on the target text, as an evaluate task measures it."""
        from isoloss_trainer.evaluate import evaluate

        config = EvaluateConfig(
            data_digest=self._manifest.digest,
            mixture={TARGET: 1.0},
            checkpoint=self._uri(checkpoint),
            sequence_length=SEQUENCE_LENGTH,
            sequences_per_domain=self.design.validation_sequences,
            precision="float32",
        )
        task = EvaluateTask(config=config, store_uri=self._store_uri, data_uri=self._data_uri)
        evaluate(task, self._scratch, self._interruption, self._log)
        return self._store.read_record(layout.evaluation_result(config.key), EvaluationResult)

    def _path(self, checkpoint: Checkpoint) -> Path:
        return self._folder / "checkpoints" / checkpoint.name

    def _uri(self, checkpoint: Checkpoint) -> str:
        return f"file://{self._path(checkpoint).resolve()}"
