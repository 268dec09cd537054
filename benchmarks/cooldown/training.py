"""The demo's proxies with cooldowns, trained point by point; what is in the store is not trained again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.demo_sweep import DemoInFolder
from benchmarks.point_trainer import PointTrainer
from benchmarks.study import Say
from demo.inputs import provide_corpus
from isoloss.laws import Run
from isoloss.runs import Weights
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.planning.points import PlannedPoint, plan_points
from isoloss_operator.planning.specs import parse_sweep_spec
from isoloss_trainer.termination import Interruption

Shape = Literal["Linear", "OneMinusSqrt"]
SHAPES: tuple[Shape, ...] = ("Linear", "OneMinusSqrt")
COOLDOWNS_PER_DECADE = 12


@dataclass(frozen=True)
class TrainedPoint:
    """A point of the grid with its losses by kind."""

    size: str
    runs: Mapping[str, Run]
    tokens: int
    cooldown_tokens: int


class Workshop:
    """Trains in this process and keeps everything in `folder`."""

    def __init__(self, folder: Path, share: str, interruption: Interruption, say: Say) -> None:
        self._demo, self._share = DemoInFolder(folder), share
        scratch = folder / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        provide_corpus(self._demo.inputs, scratch, say)
        corpus = self._demo.corpus(self._spec(SHAPES[0]))
        self._trainer = PointTrainer("bench-cooldown", corpus, scratch, interruption)

    def points(self, shape: Shape) -> Sequence[PlannedPoint]:
        """The demo's points with cooldowns of that shape."""
        return plan_points(self._spec(shape), self._trainer.manifest)

    def _spec(self, shape: Shape) -> ScalingSweepSpec:
        spec = self._demo.larger_sweep()
        spec["evaluation"]["cooldown"] = {
            "share": self._share,
            "shape": shape,
            "perDecade": COOLDOWNS_PER_DECADE,
        }
        return parse_sweep_spec(spec)

    def trained(self, point: PlannedPoint, shape: Shape) -> TrainedPoint:
        """Train the point unless that is done. Raises Interrupted."""
        trained = self._trainer.trained(point.config, point.proxy.tokens)
        kinds: dict[str, Weights] = {"raw": "raw", "averaged": "averaged", shape: "cooled"}
        runs = {kind: trained.run(point.name, weights) for kind, weights in kinds.items()}
        result = trained.result
        return TrainedPoint(point.proxy.name, runs, result.tokens, result.cooldown_tokens)
