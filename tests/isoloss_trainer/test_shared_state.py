"""Several processes share weights and optimizer state, learn what one learns, and hand it on to another number."""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from isoloss_contract import layout
from isoloss_contract.records import EvaluationConfig, OptimizerConfig, PointConfig
from isoloss_contract.store import Store
from isoloss_trainer.attempt import TrainingState
from isoloss_trainer.checkpoint import Checkpoints, Tensors, write_tensors
from isoloss_trainer.foreign_model import load_weights
from isoloss_trainer.learner import Learner, local
from isoloss_trainer.model import build_network, build_shapes
from isoloss_trainer.world import World, _as_sent
from tests.isoloss_trainer.builders import (
    DEEPSEEK,
    LLAMA,
    QWEN3_MOE,
    SEQUENCE_LENGTH,
    quiet,
    uri,
)
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.ranks import environment_of, run_ranks
from tests.support.warm_python import WarmPython

Precision = Literal["bf16", "float32"]
STEPS = 3
BATCH = 5
"""Sequences: no number of processes divides them."""


def point(model: dict[str, Any], precision: Precision, batch_size: int = BATCH) -> PointConfig:
    return PointConfig(
        data_digest="0" * 32,
        mixture={"all": 1.0},
        model=model,
        optimizer=OptimizerConfig(gradient_clip=0.5),
        learning_rate=1e-3,
        batch_size=batch_size,
        sequence_length=SEQUENCE_LENGTH,
        evaluation=EvaluationConfig(),
        precision=precision,
    )


def learner_of(task: PointConfig, world: World) -> Learner:
    """As a run builds it: rank 0 alone has weights before they are spread."""
    if world.is_first:
        return Learner(build_network(task.model, seed=0), task, world)
    return Learner(build_shapes(task.model), task, world)


def learn(learner: Learner, first: int, steps: int) -> list[list[float]]:
    """What `steps` steps from number `first` on find out."""
    found = []
    for number in range(first, first + steps):
        generator = torch.Generator().manual_seed(number)
        size = (learner._point.batch_size, SEQUENCE_LENGTH + 1)
        batch = torch.randint(384, size, generator=generator)
        tokens = number * size[0] * SEQUENCE_LENGTH
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


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=lambda m: m["model_type"])
def test_weights_of_a_checkpoint_in_bfloat16_are_trained_in_float32(
    tmp_path: Path, model: dict[str, Any], precision: Precision
) -> None:
    """All that a step changes: rounded to bfloat16, most of its changes would be lost."""
    given = build_network(model, seed=7).to(torch.bfloat16)
    given.save_pretrained(tmp_path / "model")
    network = build_shapes(model)
    load_weights(network, uri(tmp_path / "model"), tmp_path, World())
    tensors = Learner(network, point(model, precision), World()).tensors()
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    for name, weight in given.named_parameters():
        assert torch.equal(local(tensors[f"weights.{name}"]), weight.float())


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
    ("processes", "model", "precision", "batch_size"),
    [
        pytest.param(2, LLAMA, "float32", 5, id="2, dense"),
        pytest.param(2, {**LLAMA, "tie_word_embeddings": True}, "bf16", 5, id="2, tied, bf16"),
        pytest.param(2, DEEPSEEK, "float32", 1, id="2, MoE, one sequence for both"),
        pytest.param(4, QWEN3_MOE, "float32", 5, id="4, MoE with a balance loss"),
        pytest.param(4, DEEPSEEK, "bf16", 5, id="4, MoE, bf16", marks=pytest.mark.whole),
        pytest.param(3, LLAMA, "float32", 5, id="3, dense", marks=pytest.mark.whole),
    ],
)
def test_processes_with_a_part_of_the_state_each_learn_what_one_learns(
    tmp_path: Path,
    python: WarmPython,
    processes: int,
    model: dict[str, Any],
    precision: Precision,
    batch_size: int,
) -> None:
    """Losses, gradient norms, weights, averages and moments; then each continues the other's state."""
    task = point(model, precision, batch_size)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        pytest.param("float32", torch.float32, marks=pytest.mark.whole, id="float32"),
        pytest.param("bf16", torch.bfloat16, id="bf16"),
    ],
)
def test_a_checkpoint_continues_in_two_processes_and_then_in_another_number(
    prepared: Prepared,
    tmp_path: Path,
    python: WarmPython,
    precision: Precision,
    dtype: torch.dtype,
) -> None:
    """A model of eight layers with grouped heads, from weights in files of several parts, as a probe of a large one."""
    model = {
        **LLAMA,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "tie_word_embeddings": True,
    }
    build_network(model, seed=7).to(dtype).save_pretrained(
        tmp_path / "model", max_shard_size="50KB"
    )
    task = prepared.train_task(
        model=model,
        tokens=1024,
        precision=precision,
        initial_weights=uri(tmp_path / "model"),
    )
    losses = []
    for courses in ([(1, 2048)], [(2, 1024), (4, 1536), (1, 2048)]):
        prepared.store.remove(layout.point_folder(task.point.key))
        for processes, tokens in courses:
            wanted = task.model_copy(update={"tokens": tokens})
            environment = environment_of(wanted, tmp_path, PROCESSES=processes)
            done = python.run(["-m", "isoloss_trainer", "train"], environment=environment)
            assert done.returncode == 0, done.stderr[-2000:]
        result = prepared.result(task)
        assert result.tokens == 2048
        losses.append(result.loss)
    assert losses[1] == pytest.approx(losses[0], abs=1e-5 if precision == "float32" else 5e-3)


if __name__ == "__main__":
    take_part(Path(sys.argv[1]))


class Twice(World):
    """Two processes that hold the same."""

    def of_all(self, call: Callable[[], object], group: object = None) -> list[object]:  # type: ignore[override]
        return [call(), call()]


def test_parts_that_two_processes_hold_alike_make_up_no_tensor_and_are_refused() -> None:
    """Before a manifest names them: the last good checkpoint is deleted after it."""
    tensors = {"weights.a": torch.ones(4)}
    assert write_tensors(lambda _file, _content: None, tensors, World(), None).tensors
    with pytest.raises(ValueError, match=r"weights\.a: the parts are not a tensor"):
        write_tensors(lambda _file, _content: None, tensors, Twice(), None)


def test_no_two_files_of_checkpoints_have_one_name() -> None:
    """What a superseded attempt writes late is no file of its successor, whose numbers may be others."""
    names: list[str] = []
    for _ in range(2):
        tensors = {"weights.a": torch.ones(4)}
        write_tensors(lambda file, _: names.append(file), tensors, World(), None)
    assert len(set(names)) == len(names) == 2


def test_an_error_that_cannot_be_pickled_reaches_other_processes_in_words() -> None:
    sent = _as_sent(OSError("busy", threading.Lock()))
    assert isinstance(sent, RuntimeError)
    assert str(sent).startswith("OSError: ")
    assert "busy" in str(sent)
    plain = ValueError("as it is")
    assert _as_sent(plain) is plain
