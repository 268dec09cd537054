"""The comparison of the trainer with its rivals: they do the same work, and take turns."""

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import trainer_rivals
from benchmarks.bench_trainer import compare, main
from benchmarks.packaged_rivals import Packaged
from benchmarks.trainer_rivals import Entrant, Setting, Shape
from isoloss_operator.planning.models import parameter_counts
from tests.support.models import example_model

SHAPE = Shape("dense-tiny", 32, 2, 2)


@pytest.mark.parametrize("package", ["torchtitan", "litgpt"])
def test_a_packages_model_has_as_many_matrix_parameters_as_ours(package: str) -> None:
    pytest.importorskip(package)
    config = example_model("dense-100m")
    model = Packaged(package, config, 64, torch.device("meta"))
    counts = parameter_counts(config)
    number = sum(p.numel() for p in model.parameters() if p.dim() >= 2)
    assert number == counts.body_total + counts.head + counts.embedding


def test_a_packages_model_learns() -> None:
    pytest.importorskip("litgpt")
    torch.manual_seed(0)
    config = example_model("dense-tiny")
    model = Packaged("litgpt", config, 32, torch.device("cpu"))
    tokens = torch.randint(config["vocab_size"], (2, 33))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1


def _rival(trains_up_to: int, calls: list[str], name: str):
    def make(setting: Setting, size: int) -> Entrant:
        def run() -> float:
            calls.append(name)
            if size > trains_up_to:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return 1.0 if name == "ours" else 2.0

        return Entrant(run, lambda: size)

    return make


def test_rivals_take_turns_and_one_without_memory_tries_half(monkeypatch, capsys) -> None:
    calls: list[str] = []
    field = {
        "ours": _rival(8, calls, "ours"),
        "b": _rival(1, calls, "b"),
        "c": _rival(0, calls, "c"),
    }
    monkeypatch.setattr(trainer_rivals, "rivals", lambda _: field)
    found = compare(Shape("dense-tiny", 32, 4, 2), 2)
    assert calls == ["ours", "b", "b", "b", "ours", "b", "ours", "b", "c", "c", "c"]
    assert found["c"] is None
    assert found["b"].micro_batch == 1
    assert found["b"].ratio == (2.0, 2.0, 2.0)
    printed = capsys.readouterr().out
    assert "ours is 2.00 times as fast (2.00 to 2.00, 2 rounds)" in printed
    assert "out of memory" in printed


@pytest.mark.whole
def test_the_command_measures_every_rival(monkeypatch, capsys) -> None:
    shapes = {**trainer_rivals.SHAPES, "toy": SHAPE}
    monkeypatch.setattr(trainer_rivals, "SHAPES", shapes)
    main(["--shape", "toy", "--rounds", "2"])
    printed = capsys.readouterr().out
    for name in ("transformers loop", "Hugging Face Trainer", "torchtitan", "litgpt"):
        assert f"  {name}" in printed
    assert "2 rounds" in printed
    assert "cores" in printed
