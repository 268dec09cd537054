"""Several processes share the optimizer state, learn what one learns, and hand it on to another number."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from isoloss_contract.records import EvaluationConfig, OptimizerConfig, PointConfig
from isoloss_trainer.learner import FLAT, Learner
from isoloss_trainer.model import build_network
from isoloss_trainer.named_tensors import Parts
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, SEQUENCE_LENGTH
from tests.isoloss_trainer.ranks import run_ranks
from tests.support.warm_python import WarmPython

Precision = Literal["bf16", "float32"]
STEPS = 3


def point(model: dict[str, Any], precision: Precision) -> PointConfig:
    return PointConfig(
        data_digest="0" * 32,
        mixture={"all": 1.0},
        model=model,
        optimizer=OptimizerConfig(gradient_clip=0.5),
        learning_rate=1e-3,
        batch_size=4,
        sequence_length=SEQUENCE_LENGTH,
        evaluation=EvaluationConfig(),
        precision=precision,
    )


def learn(learner: Learner, first: int, steps: int) -> list[list[float]]:
    """What `steps` steps from number `first` on find out."""
    found = []
    for number in range(first, first + steps):
        generator = torch.Generator().manual_seed(number)
        batch = torch.randint(384, (4, SEQUENCE_LENGTH + 1), generator=generator)
        found.append([float(fact) for fact in learner.step(batch, number * 4 * SEQUENCE_LENGTH)])
    return found


def take_part(folder: Path) -> None:
    """One of several processes: continue from `before`, if there is one; leave the state in `after`."""
    world = World.of_environment().joined()
    task = PointConfig.model_validate_json((folder / "point.json").read_text())
    learner = Learner(build_network(task.model, seed=0), task, world)
    first = 1
    if (folder / "before").exists():
        learner.restore(torch.load(folder / "before") if world.is_first else None)
        first += STEPS
    facts = learn(learner, first, STEPS)
    parts = learner.copied()
    sizes = [learner.tensors()[name].numel() for name in FLAT]
    (folder / f"facts-{world.rank}.json").write_text(json.dumps({"facts": facts, "sizes": sizes}))
    if parts is not None:
        torch.save(parts, folder / "after")
    with learner.averaged():
        mean = float(sum(p.double().abs().sum() for p in learner.model.network.parameters()))
    (folder / f"averaged-{world.rank}").write_text(str(mean))
    world.leave()


def together(
    python: WarmPython, task: PointConfig, folder: Path, before: Parts | None = None
) -> tuple[Any, Parts]:
    """What two processes found out, and their state."""
    folder.mkdir()
    (folder / "point.json").write_text(task.model_dump_json())
    if before is not None:
        torch.save(before, folder / "before")
    program = ["-m", "tests.isoloss_trainer.test_shared_state", str(folder)]
    ends = run_ranks(python, program, 2)
    assert [end.returncode for end in ends] == [0, 0], ends
    facts = [json.loads((folder / f"facts-{rank}.json").read_text()) for rank in "01"]
    assert facts[0] == facts[1]
    assert (folder / "averaged-0").read_text() == (folder / "averaged-1").read_text()
    return facts[0], torch.load(folder / "after")


def close(ours: Parts, theirs: Parts) -> bool:
    """Whether all tensors are equal to within rounding."""
    return all(
        torch.allclose(tensor, theirs[part][name], rtol=1e-3, atol=2e-5)
        for part, tensors in ours.items()
        for name, tensor in tensors.items()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "precision"),
    [(LLAMA, "float32"), (LLAMA, "bf16"), (DEEPSEEK, "float32")],
    ids=["dense", "dense, bf16", "MoE"],
)
def test_two_processes_with_half_the_state_each_learn_what_one_learns(
    tmp_path: Path, python: WarmPython, model: dict[str, Any], precision: Precision
) -> None:
    """Losses, gradient norms, weights, averages and moments; then each continues the other's state."""
    task = point(model, precision)
    alone = Learner(build_network(model, seed=0), task, World())
    wanted = learn(alone, 1, STEPS)
    size = alone.tensors()["weights"].numel()
    found, parts = together(python, task, tmp_path / "first")
    tolerance = 1e-5 if precision == "float32" else 2e-2
    for ours, theirs in zip(found["facts"], wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance)
    assert all(2 * own in (size, size + 64) for own in found["sizes"])
    by_one = alone.copied()
    assert by_one is not None
    if precision == "float32":
        assert close(parts, by_one)
    again = {part: {n: t.clone() for n, t in tensors.items()} for part, tensors in by_one.items()}
    continued, _ = together(python, task, tmp_path / "second", again)
    other = Learner(build_network(model, seed=1), task, World())
    other.restore(parts)
    for ours, theirs, own in zip(
        continued["facts"],
        learn(alone, 1 + STEPS, STEPS),
        learn(other, 1 + STEPS, STEPS),
        strict=True,
    ):
        assert ours == pytest.approx(theirs, rel=tolerance)
        assert own == pytest.approx(theirs, rel=tolerance)


if __name__ == "__main__":
    take_part(Path(sys.argv[1]))
