"""The comparison of the trainer with its rivals: they do the same work, and take turns."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import bench_trainer, checkpoint_pauses, trainer_rivals
from benchmarks.bench_trainer import compare, main, parse
from benchmarks.offloading import offload, resident
from benchmarks.rebuilt_models import DecoderRival, SpeedrunRival
from benchmarks.trainer_rivals import Entrant, Setting, Shape, largest_divisor, rivals
from isoloss_operator.planning.flops import Convention, token_flops
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.presets import preset_config
from isoloss_trainer.run_log import peak_of

SHAPE = Shape("dense-tiny", 32, 2, 2)


def rebuilt(preset: str) -> list[torch.nn.Module]:
    config = preset_config(preset)
    with torch.device("meta"):
        found: list[torch.nn.Module] = [DecoderRival(config, 64, torch.float32)]
        if config["model_type"] == "llama":
            found.append(SpeedrunRival(config, 64, torch.float32))
    return found


@pytest.mark.parametrize(
    "preset", ["dense-100m", "dense-500m", "moe-100m", "moe-500m", "moe-tiny"]
)
def test_rebuilt_models_have_as_many_matrix_parameters_as_ours(preset: str) -> None:
    counts = parameter_counts(preset_config(preset))
    for model in rebuilt(preset):
        number = sum(p.numel() for p in model.parameters() if p.dim() >= 2)
        assert number == counts.body_total + counts.head + counts.embedding


@pytest.mark.parametrize("preset", ["dense-tiny", "moe-tiny"])
def test_rebuilt_models_see_no_later_token_and_learn(preset: str) -> None:
    torch.manual_seed(0)
    config = preset_config(preset)
    models = [DecoderRival(config, 32, torch.float32)]
    if preset == "dense-tiny":
        models.append(SpeedrunRival(config, 32, torch.float32))
    tokens = torch.randint(config["vocab_size"], (2, 33))
    for model in models:
        changed = tokens[:, :-1].clone()
        changed[:, 16:] = 0
        states = [_states(model, inputs) for inputs in (tokens[:, :-1], changed)]
        assert torch.allclose(states[0][:, :16], states[1][:, :16], atol=1e-5)
        assert not torch.allclose(states[0][:, 16:], states[1][:, 16:], atol=1e-3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(8):
            loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0] - 1
        assert losses[0] == pytest.approx(math.log(1024), abs=0.3)


def _states(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []
    handle = model.head.register_forward_pre_hook(lambda _, args: found.append(args[0].detach()))
    with torch.no_grad():
        model(inputs, inputs)
    handle.remove()
    return found[0]


def test_mfu_of_latent_attention_counts_heads_as_they_are() -> None:
    """moe-100m: 12 layers, 6 heads, queries of 192, values of 128, which kernels widen to 192."""
    flops = token_flops(preset_config("moe-100m"), 8192)
    attention = flops.total(Convention.PALM) - flops.total(Convention.SIX_ND)
    assert attention == 6 * 12 * 6 * (192 + 128) * 8192


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("Some Future Device", None),
    ],
)
def test_the_peak_is_that_of_the_device(device: str, peak: float | None) -> None:
    assert peak_of(device) == peak


def test_tensors_come_back_as_they_were_with_their_views() -> None:
    whole = torch.arange(1000.0)
    view = whole[100:200]
    gone = offload([whole, view])
    assert gone.bytes == 4000
    assert whole.untyped_storage().nbytes() == 0
    gone.load()
    assert torch.equal(whole, torch.arange(1000.0))
    assert view[0] == 100
    view.zero_()
    assert whole[150] == 0


def test_large_tensors_are_found_wherever_they_are_kept() -> None:
    class Holder:
        tensor = torch.ones(2**19)

    small = torch.ones(10)
    pointers = {t.data_ptr() for t in resident(torch.device("cpu"), 2**21)}
    assert Holder.tensor.data_ptr() in pointers
    assert small.data_ptr() not in pointers


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
    monkeypatch.setattr(bench_trainer, "rivals", lambda _: field)
    found = compare(Shape("dense-tiny", 32, 4, 2), 2)
    assert calls == ["ours", "b", "b", "b", "ours", "b", "ours", "b", "c", "c", "c"]
    assert found["c"] is None
    assert found["b"].micro_batch == 1
    assert found["b"].ratio == (2.0, 2.0, 2.0)
    printed = capsys.readouterr().out
    assert "ours is 2.00 times as fast (2.00 to 2.00, 2 rounds)" in printed
    assert "out of memory" in printed


def test_no_round_begins_when_the_time_is_over(monkeypatch) -> None:
    field = {"ours": _rival(8, [], "ours"), "b": _rival(8, [], "b")}
    monkeypatch.setattr(bench_trainer, "rivals", lambda _: field)
    assert compare(SHAPE, 50, seconds_at_most=0)["b"].rounds == 1


def test_without_ours_there_is_no_ratio(monkeypatch) -> None:
    field = {"ours": _rival(0, [], "ours"), "b": _rival(8, [], "b")}
    monkeypatch.setattr(bench_trainer, "rivals", lambda _: field)
    found = compare(SHAPE, 2)
    assert found["ours"] is None
    assert found["b"].ratio is None


def test_experts_have_no_rival_that_has_none() -> None:
    assert "nanochat-like" in rivals(Setting.of(SHAPE))
    assert "nanochat-like" not in rivals(Setting.of(Shape("moe-tiny", 32, 2, 2)))


@pytest.mark.parametrize(("number", "most", "wanted"), [(16, 5, 4), (16, 0, 1), (6, 99, 6)])
def test_micro_batches_divide_the_batch(number: int, most: int, wanted: int) -> None:
    assert largest_divisor(number, most) == wanted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "1"], "--rounds must be 2 or more"),
        (["--dry", "--shape", "toy"], "--dry counts all presets"),
        (["--shape", "dense-100m"], "--shape dense-100m needs a GPU"),
        (["--json", "/nowhere/at/all.json"], "its folder does not exist"),
        (["--shape", "huge"], "invalid choice"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], words: str, capsys) -> None:
    with pytest.raises(SystemExit):
        parse(arguments, cuda=False)
    assert words in capsys.readouterr().err


@pytest.mark.whole
def test_the_command_measures_every_rival(monkeypatch, tmp_path: Path, capsys) -> None:
    shapes = {**trainer_rivals.SHAPES, "toy": SHAPE}
    monkeypatch.setattr(bench_trainer, "SHAPES", shapes)
    file = tmp_path / "figures.json"
    main(["--shape", "toy", "--rounds", "2", "--json", str(file)])
    printed = capsys.readouterr().out
    for name in ("transformers loop", "Hugging Face Trainer", "torchtitan-like", "nanochat-like"):
        assert f"  {name}" in printed
    assert "2 rounds" in printed
    assert "cores" in printed
    assert '"tokens_per_second"' in file.read_text()


def test_help_on_the_pauses_of_checkpoints_measures_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["checkpoint_pauses", "--help"])
    monkeypatch.setattr(checkpoint_pauses, "print_pauses", pytest.fail)
    with pytest.raises(SystemExit, match="0"):
        checkpoint_pauses.main()
    assert "python -m benchmarks.checkpoint_pauses" in capsys.readouterr().out
