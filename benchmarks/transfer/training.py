"""Runs and measures points with the trainer itself; what is in the store is not trained again."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.transfer.design import (
    DECAY,
    OPTIMIZER,
    SEQUENCE_LENGTH,
    TARGET,
    Checkpoint,
    Design,
    Place,
    Size,
)
from benchmarks.transfer.design import MIXTURES as PRETRAINING
from benchmarks.transfer.point_trainer import PointTrainer
from isoloss.laws import Run
from isoloss_contract import layout
from isoloss_contract.records import (
    EvaluateConfig,
    EvaluationResult,
    PointConfig,
    PrepareTask,
)
from isoloss_trainer.export import trained_network
from isoloss_trainer.log import Log
from isoloss_trainer.termination import Interruption

PRETRAINING_SEED = 1
"""Pre-training reads its domains in another order than the grids do."""


class Workshop:
    """Trains, saves and measures; checkpoints are in `folder`, all else in the task's store."""

    def __init__(
        self, design: Design, folder: Path, corpus: PrepareTask, interruption: Interruption
    ) -> None:
        self.design, self._folder = design, folder
        self._trainer = PointTrainer("bench-transfer", corpus, folder / "scratch", interruption)
        self._log = Log(Path(os.devnull).open("w"))  # noqa: SIM115 (as long as the process)

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
            data_digest=self._trainer.manifest.digest,
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
        return self._trainer.trained(point, tokens, kept=kept).run(point.key, "averaged")

    # -------------------------------------------------------------------------------- checkpoints

    def provide(self, checkpoint: Checkpoint) -> None:
        """Pre-train the checkpoint and save its weights, unless they are there.

        Averaged weights stand in for a learning rate that decayed, which published checkpoints had; decayed
        and raw ones tell what the average does.
        Checkpoints of one text are one run: the shorter ones are saved on the way to the longer.
        """
        for tokens in self.design.pretraining_tokens:
            if tokens < checkpoint.tokens:
                self._provide(replace(checkpoint, tokens=tokens, ending="averaged"))
        self._provide(checkpoint)

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
        done = self._trainer.trained(point, checkpoint.tokens, kept=True).result
        if done.wanted_tokens > checkpoint.tokens:
            message = (
                f"{checkpoint.name}: its pre-training run is at {done.tokens:,} tokens already"
            )
            raise RuntimeError(f"{message}; delete {layout.point_folder(point.key)} of the store")
        temporary = folder.with_suffix(".new")
        shutil.rmtree(temporary, ignore_errors=True)
        self._network(checkpoint, point).save_pretrained(temporary)
        temporary.rename(folder)

    def _network(self, checkpoint: Checkpoint, point: PointConfig) -> Any:
        if checkpoint.ending == "decayed":
            steps = round(DECAY * checkpoint.tokens / (point.batch_size * SEQUENCE_LENGTH))
            return self._trainer.decayed(point, steps)
        return trained_network(self._trainer.store, point, checkpoint.ending, self._log)[1]

    def initial_loss(self, checkpoint: Checkpoint) -> EvaluationResult:
        """The checkpoint's loss on the target text, as an evaluate task measures it."""
        config = EvaluateConfig(
            data_digest=self._trainer.manifest.digest,
            mixture={TARGET: 1.0},
            checkpoint=self._uri(checkpoint),
            sequence_length=SEQUENCE_LENGTH,
            sequences_per_domain=self.design.validation_sequences,
            precision="float32",
        )
        return self._trainer.evaluated(config)

    def _path(self, checkpoint: Checkpoint) -> Path:
        return self._folder / "checkpoints" / checkpoint.name

    def _uri(self, checkpoint: Checkpoint) -> str:
        return f"file://{self._path(checkpoint).resolve()}"
