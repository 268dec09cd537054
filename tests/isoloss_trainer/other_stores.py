"""The trainer on an object store: the same corpus and the same point as on a file system."""

from pathlib import Path

import pytest

from isoloss_contract import layout
from isoloss_contract.records import DataManifest, TrainTask
from isoloss_contract.store import Store
from isoloss_trainer.prepare import prepare
from isoloss_trainer.termination import Interrupted, Interruption
from isoloss_trainer.train import train
from tests.isoloss_trainer.builders import prepare_task, quiet, stop_during_step, train_task
from tests.isoloss_trainer.conftest import Prepared


def prepared_on(root: str, scratch: Path) -> DataManifest:
    """Prepare `root`/corpus into `root`/sweep."""
    task = prepare_task(f"{root}/corpus", f"{root}/sweep")
    prepare(task, scratch, Interruption(), quiet())
    path = layout.data_manifest(task.config.key)
    return Store(f"{root}/sweep").read_record(path, DataManifest)


def trained_there_and_here(
    manifest: DataManifest, root: str, prepared: Prepared, scratch: Path
) -> tuple[TrainTask, bytes, bytes]:
    """A point on `root`/sweep, interrupted twice, and on a file system: its task, both trajectories."""
    task = train_task(manifest, f"{root}/sweep")
    for step in (3, 5):
        with stop_during_step(step) as interruption, pytest.raises(Interrupted):
            train(task, scratch, interruption, quiet())
    train(task, scratch, Interruption(), quiet())
    local = prepared.train_task()
    train(local, scratch, Interruption(), quiet())
    there = Store(f"{root}/sweep").read(layout.point_trajectory(task.point.key))
    return task, there, prepared.store.read(layout.point_trajectory(local.point.key))
