"""Prepared data that the trainer's tests share: made once per process, copied where it is changed."""

import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from isoloss_contract import layout
from isoloss_contract.records import (
    DataManifest,
    EvaluateTask,
    EvaluationResult,
    PointResult,
    TrainTask,
)
from isoloss_contract.store import Store
from isoloss_trainer.evaluate import evaluate
from isoloss_trainer.prepare import prepare
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import Interruption
from tests.isoloss_trainer import builders
from tests.support.warm_python import WarmPython

PRELUDE = """
import torch.distributed
import torch.utils.flop_counter
import isoloss_trainer.evaluate, isoloss_trainer.launch, isoloss_trainer.learner, isoloss_trainer.train
from isoloss_trainer.model import build_network
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, QWEN3_MOE
for config in (LLAMA, DEEPSEEK, QWEN3_MOE):
    build_network(config)
"""
FORK_THE_RANKS = """
from types import SimpleNamespace
from isoloss_trainer import launch
from tests.support.warm_python import ForkedProcess
launch.subprocess = SimpleNamespace(Popen=ForkedProcess)
"""


@dataclass(frozen=True)
class Prepared:
    """A store with prepared data in it."""

    folder: Path
    manifest: DataManifest

    @property
    def uri(self) -> str:
        """The store."""
        return builders.uri(self.folder)

    @property
    def data_uri(self) -> str:
        """The folder of the prepared data."""
        return f"{self.uri}/data/{self.manifest.prepare_key}"

    @property
    def data_folder(self) -> Path:
        """The same as a path."""
        return self.folder / "data" / self.manifest.prepare_key

    @property
    def data(self) -> PreparedData:
        """What a run reads of them."""
        return PreparedData(self.data_uri, self.folder)

    @property
    def store(self) -> Store:
        """Where points are trained."""
        return Store(self.uri)

    def result(self, task: TrainTask) -> PointResult:
        """Of a point that was trained there."""
        return self.store.read_record(layout.point_result(task.point.key), PointResult)

    def evaluated(self, checkpoint: Path | str, scratch: Path, **changes: Any) -> EvaluationResult:
        """Of a checkpoint, which is measured on them."""
        task = self.evaluate_task(checkpoint, **changes)
        evaluate(task, scratch, Interruption(), builders.quiet())
        path = layout.evaluation_result(task.config.key)
        return self.store.read_record(path, EvaluationResult)

    def train_task(self, **changes: Any) -> TrainTask:
        """Train a tiny model on them."""
        return builders.train_task(self.manifest, self.uri, **changes)

    def evaluate_task(self, checkpoint: Path | str, **changes: Any) -> EvaluateTask:
        """Measure a checkpoint on them."""
        where = builders.uri(checkpoint) if isinstance(checkpoint, Path) else checkpoint
        return builders.evaluate_task(self.manifest, self.uri, where, **changes)


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """Restore the signal handlers that main() replaces."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def python() -> Iterator[WarmPython]:
    """Starts Python, where torch and the trainer are imported already; several processes of one task, too."""
    warm = WarmPython(PRELUDE, FORK_THE_RANKS)
    yield warm
    warm.end()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of two domains with a tokenizer; not to be changed."""
    return builders.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def _prepared_once(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("store")
    task = builders.prepare_task(builders.uri(corpus), builders.uri(folder))
    prepare(task, folder, Interruption(), builders.quiet())
    path = layout.data_manifest(task.config.key)
    return Prepared(folder, Store(builders.uri(folder)).read_record(path, DataManifest))


@pytest.fixture
def prepared(_prepared_once: Prepared, tmp_path: Path) -> Prepared:
    """A store of the test's own with prepared data."""
    folder = tmp_path / "store"
    shutil.copytree(_prepared_once.folder, folder)
    return Prepared(folder, _prepared_once.manifest)
