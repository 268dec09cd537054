"""Several processes share weights and optimizer state, learn what one learns, and hand it on to another number."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from isoloss_contract.records import EvaluationConfig, OptimizerConfig, PointConfig
from isoloss_contract.store import Store
from isoloss_trainer.checkpoint import Checkpoints
from isoloss_trainer.checkpoint_files import Tensors
from isoloss_trainer.learner import Learner
from isoloss_trainer.model import build_network, shapes_only
from isoloss_trainer.sharding import local
from isoloss_trainer.training_state import TrainingState
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, QWEN3_MOE, SEQUENCE_LENGTH, quiet
from tests.isoloss_trainer.ranks import run_ranks
from tests.support.warm_python import WarmPython

Precision = Literal["bf16", "float32"]
STEPS = 3
BATCH = 5
"""Sequences: no number of processes divides them."""


def point(model: dict[str, Any], precision: Precision) -> PointConfig:
    return PointConfig(
        data_digest="0" * 32,
        mixture={"all": 1.0},
        model=model,
        optimizer=OptimizerConfig(gradient_clip=0.5),
        learning_rate=1e-3,
        batch_size=BATCH,
        sequence_length=SEQUENCE_LENGTH,
        evaluation=EvaluationConfig(),
        precision=precision,
    )


def learner_of(task: PointConfig, world: World) -> Learner:
    """As a run builds it: rank 0 alone has weights before they are spread."""
    if world.is_first:
        return Learner(build_network(task.model, seed=0), task, world)
    with shapes_only():
        network = build_network(task.model)
    return Learner(network, task, world)


def learn(learner: Learner, first: int, steps: int) -> list[list[float]]:
    """What `steps` steps from number `first` on find out."""
    found = []
    for number in range(first, first + steps):
        generator = torch.Generator().manual_seed(number)
        batch = torch.randint(384, (BATCH, SEQUENCE_LENGTH + 1), generator=generator)
        tokens = number * BATCH * SEQUENCE_LENGTH
        found.append([float(fact) for fact in learner.step(batch, tokens)])
    return found


def checkpoints(folder: Path, world: World) -> Checkpoints:
    store = Store(f"file://{folder}")
    return Checkpoints(store, "0" * 32, keep=2, check=lambda: None, log=quiet(), world=world)


def leave_state(learner: Learner, folder: Path) -> None:
    kept = checkpoints(folder, learner.world)
    kept.save(TrainingState(step=STEPS), 0, learner.copied(), {})
    kept.wait()


def take_state(learner: Learner, folder: Path) -> None:
    assert checkpoints(folder, learner.world).restore(learner.on_host()) is not None
    learner.restore()


def take_part(folder: Path) -> None:
    """One of several processes: continue from `before`, if there is one; leave the state in `after`."""
    world = World.of_environment().joined()
    task = PointConfig.model_validate_json((folder / "point.json").read_text())
    learner = learner_of(task, world)
    first = 1
    if (folder / "before").exists():
        take_state(learner, folder / "before")
        first += STEPS
    facts = learn(learner, first, STEPS)
    leave_state(learner, folder / "after")
    size = sum(local(tensor).numel() for tensor in learner.tensors().values())
    with learner.averaged():
        tokens = torch.arange(SEQUENCE_LENGTH + 1)[None]
        averaged = float(learner.token_losses(tokens[:, :-1], tokens[:, 1:]).mean())
    found = {"facts": facts, "averaged": averaged, "size": size}
    (folder / f"found-{world.rank}.json").write_text(json.dumps(found))
    world.leave()


def together(
    python: WarmPython, task: PointConfig, folder: Path, processes: int, before: Path | None = None
) -> list[dict[str, Any]]:
    """What each process found; their state is in `folder`/after."""
    folder.mkdir()
    (folder / "point.json").write_text(task.model_dump_json())
    if before is not None:
        (folder / "before").symlink_to(before)
    program = ["-m", "tests.isoloss_trainer.test_shared_state", str(folder)]
    ends = run_ranks(python, program, processes)
    assert [end.returncode for end in ends] == [0] * processes, ends
    found = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(processes)]
    assert all(each["facts"] == found[0]["facts"] for each in found)
    assert all(each["averaged"] == found[0]["averaged"] for each in found)
    return found


def assert_close(ours: Tensors, theirs: Tensors) -> None:
    """All tensors are equal to within rounding."""
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        torch.testing.assert_close(local(tensor), local(theirs[name]), rtol=1e-3, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "model", "precision"),
    [
        pytest.param(2, LLAMA, "float32", id="2, dense"),
        pytest.param(2, LLAMA, "bf16", id="2, dense, bf16"),
        pytest.param(2, DEEPSEEK, "float32", id="2, MoE"),
        pytest.param(4, QWEN3_MOE, "float32", id="4, MoE with a balance loss"),
        pytest.param(4, DEEPSEEK, "bf16", id="4, MoE, bf16", marks=pytest.mark.whole),
        pytest.param(3, LLAMA, "float32", id="3, dense", marks=pytest.mark.whole),
    ],
)
def test_processes_with_a_part_of_the_state_each_learn_what_one_learns(
    tmp_path: Path,
    python: WarmPython,
    processes: int,
    model: dict[str, Any],
    precision: Precision,
) -> None:
    """Losses, gradient norms, weights, averages and moments; then each continues the other's state."""
    task = point(model, precision)
    alone = learner_of(task, World())
    wanted = learn(alone, 1, STEPS)
    size = sum(tensor.numel() for tensor in alone.tensors().values())
    found = together(python, task, tmp_path / "first", processes)
    tolerance = 1e-5 if precision == "float32" else 2e-2
    for ours, theirs in zip(found[0]["facts"], wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance)
    assert max(each["size"] for each in found) < 1.1 * size / processes + 64
    leave_state(alone, tmp_path / "by one")
    other = learner_of(task, World())
    take_state(other, tmp_path / "first" / "after")
    if precision == "float32":
        assert_close(other.tensors(), alone.tensors())
    with alone.averaged():
        tokens = torch.arange(SEQUENCE_LENGTH + 1)[None]
        averaged = float(alone.token_losses(tokens[:, :-1], tokens[:, 1:]).mean())
    assert found[0]["averaged"] == pytest.approx(averaged, rel=tolerance)
    continued = together(python, task, tmp_path / "second", processes, tmp_path / "by one")
    for ours, theirs, own in zip(
        continued[0]["facts"],
        learn(alone, 1 + STEPS, STEPS),
        learn(other, 1 + STEPS, STEPS),
        strict=True,
    ):
        assert ours == pytest.approx(theirs, rel=tolerance)
        assert own == pytest.approx(theirs, rel=tolerance)


if __name__ == "__main__":
    take_part(Path(sys.argv[1]))
