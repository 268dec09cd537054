"""One point trained in this process, and what that leaves in its store."""

from dataclasses import dataclass
from pathlib import Path

import isoloss_trainer.run as run_module
from isoloss_contract import layout
from isoloss_contract.records import PointResult, TrainTask, TrajectoryRow
from isoloss_contract.store import Store, parse_record_lines
from isoloss_trainer.termination import Interruption
from isoloss_trainer.train import train
from tests.isoloss_trainer.builders import last_state, quiet


def run(task: TrainTask, interruption: Interruption | None = None) -> PointResult:
    """Train it; its result."""
    train(task, Path("/nonexistent"), interruption or Interruption(), quiet())
    return Store(task.store_uri).read_record(layout.point_result(task.point.key), PointResult)


def trajectory(task: TrainTask) -> bytes:
    """Its trajectory as stored."""
    return Store(task.store_uri).read(layout.point_trajectory(task.point.key))


def rows(task: TrainTask) -> list[TrajectoryRow]:
    """The rows of its trajectory."""
    return parse_record_lines(trajectory(task), TrajectoryRow, "trajectory")


def forget(task: TrainTask) -> None:
    """Remove all that the store has of its point."""
    Store(task.store_uri).remove(layout.point_folder(task.point.key))


@dataclass(frozen=True)
class Undisturbed:
    """What a run that nothing stops leaves."""

    trajectory: bytes
    state: dict[str, list[str]]


_UNDISTURBED: dict[str, Undisturbed] = {}


def undisturbed(task: TrainTask) -> Undisturbed:
    """Trained once in a process: it follows from the point and the micro-batch alone, which is what is tested."""
    key = f"{task.point.key} {task.tokens} {task.micro_batch_halvings} {run_module.CPU_TOKENS}"
    if key not in _UNDISTURBED:
        run(task)
        state = last_state(Store(task.store_uri), task.point.key)
        _UNDISTURBED[key] = Undisturbed(trajectory(task), state)
        forget(task)
    return _UNDISTURBED[key]
