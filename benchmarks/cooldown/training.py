"""The demo's sweep with cooldowns, trained point by point; what is in the store is not trained again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from demo.inputs import provide_corpus
from demo.places import STORE, SWEEP_FILE
from isoloss.laws import Run
from isoloss.runs import Weights, run_from_point
from isoloss_contract import layout
from isoloss_contract.records import (
    Claimant,
    DataManifest,
    Outcome,
    PointResult,
    PrepareTask,
    TrainTask,
)
from isoloss_contract.store import Store
from isoloss_contract.trajectories import read_finished
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.api.yaml_text import read_documents
from isoloss_operator.planning.points import PlannedPoint, plan_points
from isoloss_operator.planning.specs import parse_sweep_spec, prepare_config
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.log import Log
from isoloss_trainer.prepare import prepare
from isoloss_trainer.termination import Diverged
from isoloss_trainer.train import train

Shape = Literal["Linear", "OneMinusSqrt"]
SHAPES: tuple[Shape, ...] = ("Linear", "OneMinusSqrt")
COOLDOWNS_PER_DECADE = 12
CLAIMANT = Claimant(sweep_uid="bench-cooldown", attempt=1)


@dataclass(frozen=True)
class TrainedPoint:
    """A point of the demo's grid with its losses by kind."""

    size: str
    runs: Mapping[str, Run]
    tokens: int
    cooldown_tokens: int


class Workshop:
    """Trains in this process and keeps everything in `folder`."""

    def __init__(
        self, folder: Path, share: str, interruption: Interruption, say: Callable[[str], None]
    ) -> None:
        self._share, self._interruption = share, interruption
        self._uri = f"file://{folder.resolve()}/store"
        self._scratch = folder / "scratch"
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._log = Log(Path(os.devnull).open("w"))  # noqa: SIM115 (as long as the process)
        provide_corpus(Store(self._uri), self._scratch, say)
        corpus = prepare_config(self._spec(SHAPES[0]))
        task = PrepareTask(config=corpus, store_uri=self._store_uri)
        prepare(task, self._scratch, interruption, self._log)
        self._data_uri = f"{self._store_uri}/{layout.data_folder(corpus.key)}"
        self._manifest = self._store.read_record(layout.data_manifest(corpus.key), DataManifest)

    def points(self, shape: Shape) -> Sequence[PlannedPoint]:
        """The demo's points with cooldowns of that shape."""
        return plan_points(self._spec(shape), self._manifest)

    def _spec(self, shape: Shape) -> ScalingSweepSpec:
        (manifest,) = read_documents(SWEEP_FILE.read_text().replace(STORE, self._uri))
        spec = manifest["spec"]
        spec["evaluation"]["cooldown"] = {
            "share": self._share,
            "shape": shape,
            "perDecade": COOLDOWNS_PER_DECADE,
        }
        return parse_sweep_spec(spec)

    def trained(self, point: PlannedPoint, shape: Shape) -> TrainedPoint:
        """Train the point unless that is done. Raises Interrupted."""
        config = point.config
        task = TrainTask(
            point=config,
            tokens=point.proxy.tokens,
            store_uri=self._store_uri,
            data_uri=self._data_uri,
            claimant=CLAIMANT,
            checkpoint_seconds=60,
            release_checkpoints_when_done=True,
        )
        # Divergence is a measurement like any other: the run has a result and ends early.
        with suppress(Diverged):
            train(task, self._scratch, self._interruption, self._log)
        result = self._store.read_record(layout.point_result(config.key), PointResult)
        rows = read_finished(self._store, config.key, result.trajectory_sha256)
        kinds: dict[str, Weights] = {"raw": "raw", "averaged": "averaged", shape: "cooled"}
        runs = {
            kind: run_from_point(
                point.name,
                config,
                result.parameters,
                rows,
                weights=weights,
                bytes_per_token=result.bytes_per_token,
                diverged=result.outcome is Outcome.DIVERGED,
                finished=True,
            )
            for kind, weights in kinds.items()
        }
        return TrainedPoint(point.proxy.name, runs, result.tokens, result.cooldown_tokens)

    @property
    def _store_uri(self) -> str:
        return f"{self._uri}/sweeps"

    @property
    def _store(self) -> Store:
        return Store(self._store_uri)
