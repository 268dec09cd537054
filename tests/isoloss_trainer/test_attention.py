"""A run measures which attention kernel is the fastest, on planted times, and keeps to it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isoloss_trainer.run as run_module
from isoloss_contract import layout
from isoloss_contract.store import Store
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.attention import NAME, NARROW_NAME, head_shape
from isoloss_trainer.attention_choice import choose_attention, measure, measurement
from isoloss_trainer.attention_kernels import (
    AttentionChoice,
    AttentionKernel,
    HeadShape,
    candidates,
    fastest,
)
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.kernels import describe_kernels
from isoloss_trainer.log import Log
from isoloss_trainer.model import LanguageModel, build_network, model_config
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.train import train
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import (
    DEEPSEEK,
    LLAMA,
    SEQUENCE_LENGTH,
    attempt,
    quiet,
    train_task,
)
from tests.isoloss_trainer.conftest import Prepared

CUDNN = AttentionKernel(backend="CUDNN_ATTENTION")
CUDNN_NARROW = AttentionKernel(backend="CUDNN_ATTENTION", narrow=True)
FLASH = AttentionKernel(backend="FLASH_ATTENTION")
EFFICIENT = AttentionKernel(backend="EFFICIENT_ATTENTION")
EFFICIENT_NARROW = AttentionKernel(backend="EFFICIENT_ATTENTION", narrow=True)
MLA = HeadShape(
    heads=6,
    key_value_heads=6,
    query_size=192,
    value_size=128,
    sequence_length=8192,
    precision="bf16",
)
EQUAL = MLA.model_copy(update={"query_size": 128, "key_value_heads": 2})
GPU = World(device="cuda:0")
DEVICE = "NVIDIA H200"


@dataclass
class Planted:
    """Seconds of each kernel; the others cannot run."""

    seconds: dict[AttentionKernel, float]
    asked: list[AttentionKernel] = field(default_factory=list)

    def __call__(self, kernel: AttentionKernel) -> float:
        self.asked.append(kernel)
        if kernel not in self.seconds:
            raise RuntimeError("No available kernel.\nAborting execution.")
        return self.seconds[kernel]


@pytest.fixture
def on_gpu(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """An attempt that takes itself to be on a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: DEVICE)
    data = PreparedData(prepared.data_uri, prepared.folder)
    alone = attempt(train_task(prepared.manifest, prepared.uri), data)
    return replace(alone, world=GPU, log=Log(io.StringIO()))


def logged(attempt: Attempt) -> list[dict[str, Any]]:
    """What it said about attention."""
    lines = attempt.log._stream.getvalue().splitlines()  # type: ignore[attr-defined]
    return [event for event in map(json.loads, lines) if event["event"].startswith("attention")]


def test_the_shape_is_that_of_the_models_heads() -> None:
    config = model_config({**DEEPSEEK, "v_head_dim": 4})
    found = head_shape(config, SEQUENCE_LENGTH, "bf16")
    assert found == HeadShape(
        heads=2,
        key_value_heads=2,
        query_size=16,
        value_size=4,
        sequence_length=SEQUENCE_LENGTH,
        precision="bf16",
    )
    grouped = head_shape(model_config(LLAMA), SEQUENCE_LENGTH, "float32")
    assert grouped is not None
    assert (grouped.heads, grouped.key_value_heads, grouped.value_size) == (2, 1, 16)
    gpt = model_config({"model_type": "gpt2", "n_embd": 16, "n_head": 2})
    assert head_shape(gpt, SEQUENCE_LENGTH, "bf16") is None


@pytest.mark.parametrize(
    ("shape", "deterministic", "wanted"),
    [
        (MLA, False, (CUDNN_NARROW, CUDNN, FLASH, EFFICIENT_NARROW)),
        (EQUAL, False, (CUDNN, FLASH, EFFICIENT)),
        (MLA, True, (FLASH,)),
        (EQUAL, True, (FLASH,)),
    ],
    ids=["narrow values", "equal sizes", "narrow, deterministic", "equal, deterministic"],
)
def test_flash_gets_no_narrow_values_and_the_deterministic_switch_leaves_flash_alone(
    shape: HeadShape, deterministic: bool, wanted: tuple[AttentionKernel, ...]
) -> None:
    assert candidates(shape, deterministic=deterministic) == wanted


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ({CUDNN_NARROW: 1.0, CUDNN: 2.0, FLASH: 3.0}, CUDNN_NARROW),
        ({CUDNN_NARROW: 3.0, CUDNN: 2.0, FLASH: 1.0}, FLASH),
        ({CUDNN_NARROW: 1.02, CUDNN: 1.01, FLASH: 1.0}, CUDNN_NARROW),
        ({CUDNN_NARROW: "no kernel", CUDNN: "no kernel", FLASH: 1.0}, FLASH),
        ({CUDNN_NARROW: "no kernel"}, None),
    ],
    ids=["fastest first", "fastest last", "equally fast", "only one runs", "none runs"],
)
def test_the_fastest_that_runs_is_taken_and_of_equal_ones_the_first(
    seconds: dict[AttentionKernel, float | str], wanted: AttentionKernel | None
) -> None:
    assert fastest(seconds) == wanted


def test_on_a_cpu_nothing_is_measured(prepared: Prepared) -> None:
    data = PreparedData(prepared.data_uri, prepared.folder)
    alone = attempt(train_task(prepared.manifest, prepared.uri), data)
    planted = Planted({FLASH: 1.0})
    assert choose_attention(alone, MLA, None, planted) is None
    assert planted.asked == []


def test_the_choice_is_measured_once_for_a_shape_and_logged(on_gpu: Attempt) -> None:
    """The second run finds it in the store."""
    planted = Planted({CUDNN_NARROW: 0.001, FLASH: 0.002})
    first = choose_attention(on_gpu, MLA, None, planted)
    assert first is not None
    assert (first.kernel, first.device) == (CUDNN_NARROW, DEVICE)
    assert planted.asked == [CUDNN_NARROW, CUDNN, FLASH, EFFICIENT_NARROW]
    (event,) = logged(on_gpu)
    assert event["chosen"] == "CUDNN_ATTENTION, narrow values"
    assert event["measured"] == {
        "CUDNN_ATTENTION, narrow values": "1 ms",
        "CUDNN_ATTENTION": "No available kernel.",
        "FLASH_ATTENTION": "2 ms",
        "EFFICIENT_ATTENTION, narrow values": "No available kernel.",
    }
    again = Planted({FLASH: 0.001})
    assert choose_attention(on_gpu, MLA, None, again) == first
    assert again.asked == []
    other = MLA.model_copy(update={"sequence_length": 4096})
    assert choose_attention(on_gpu, other, None, again) != first
    assert again.asked


@pytest.mark.parametrize(
    "change", [{"device": "NVIDIA H100"}, {"torch": "2.0"}, {"cudnn": 1}], ids=str
)
def test_what_a_checkpoint_recorded_is_kept_where_device_and_packages_are_the_same(
    on_gpu: Attempt, change: dict[str, Any]
) -> None:
    recorded = choose_attention(on_gpu, EQUAL, None, Planted({FLASH: 1.0}))
    assert recorded is not None
    planted = Planted({CUDNN: 0.001, CUDNN_NARROW: 0.001})
    assert choose_attention(on_gpu, MLA, recorded, planted) == recorded
    assert planted.asked == []
    elsewhere = recorded.model_copy(update=change)
    found = choose_attention(on_gpu, MLA, elsewhere, planted)
    assert found is not None
    assert found.kernel == CUDNN_NARROW


def test_with_deterministic_kernels_no_recorded_choice_is_kept(on_gpu: Attempt) -> None:
    """Only flash is left, whatever an attempt without the switch computed with."""
    recorded = choose_attention(on_gpu, MLA, None, Planted({CUDNN: 1.0}))
    task = on_gpu.task.model_copy(update={"deterministic": True})
    planted = Planted({CUDNN: 1.0, FLASH: 2.0})
    assert choose_attention(replace(on_gpu, task=task), MLA, recorded, planted) is None
    assert planted.asked == []


def test_a_broken_record_in_the_store_costs_a_measurement_alone(
    on_gpu: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted({FLASH: 1.0})
    first = choose_attention(on_gpu, MLA, None, planted)
    (name,) = on_gpu.store.names("compile-cache")
    on_gpu.store.write(f"compile-cache/{name}", b'{"kernel": {"backend": "exec"}}')
    assert choose_attention(on_gpu, MLA, None, planted) == first
    assert "attention-choice-unused" in {event["event"] for event in logged(on_gpu)}
    monkeypatch.setattr(Store, "write", lambda *_: pytest.fail("cannot write"))
    on_gpu.store.remove(f"compile-cache/{name}")

    def refuse(*_: Any) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(Store, "write", refuse)
    assert choose_attention(on_gpu, MLA, None, planted) == first


def test_where_no_kernel_can_run_torch_chooses_and_nothing_is_kept(on_gpu: Attempt) -> None:
    assert choose_attention(on_gpu, MLA, None, Planted({})) is None
    assert on_gpu.store.names("compile-cache") == []


class Second(World):
    """Rank 1 of two, which rank 0 has told `said`."""

    said: Any = None

    def of_first(self, call: Callable[[], Any]) -> Any:
        return self.said


def test_other_processes_measure_nothing_and_take_what_the_first_chose(on_gpu: Attempt) -> None:
    first = choose_attention(on_gpu, MLA, None, Planted({FLASH: 1.0}))
    assert first is not None
    world = Second(rank=1, size=2, device="cuda:1")
    Second.said = first
    planted = Planted({CUDNN: 1.0})
    assert choose_attention(replace(on_gpu, world=world), MLA, None, planted) == first
    assert planted.asked == []


def test_a_resumed_run_is_given_what_its_checkpoint_recorded(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = AttentionChoice(kernel=CUDNN_NARROW, device=DEVICE, torch="2.15", cudnn=None)
    recorded: list[AttentionChoice | None] = []

    def choose(
        _attempt: Attempt, _shape: HeadShape, known: AttentionChoice | None
    ) -> AttentionChoice:
        recorded.append(known)
        return choice

    monkeypatch.setattr(run_module, "choose_attention", choose)
    model = {**DEEPSEEK, "v_head_dim": 4}
    for tokens in (512, 1024):
        task = train_task(prepared.manifest, prepared.uri, model=model, tokens=tokens)
        train(task, tmp_path, Interruption(), quiet())
    assert recorded == [None, choice]


def test_narrow_values_give_the_attention_of_widened_ones() -> None:
    """And the log names the one in use, with the kernel that torch takes for it."""
    network = build_network({**DEEPSEEK, "v_head_dim": 4}, seed=0)
    model = LanguageModel(network, SEQUENCE_LENGTH)
    tokens = torch.arange(2 * SEQUENCE_LENGTH).view(2, -1)
    wide = model.hidden(tokens)
    kernels = describe_kernels(network, SEQUENCE_LENGTH, compiled=False)
    assert (kernels["attention"], kernels["attention_kernel"]) == (NAME, "FLASH_ATTENTION")
    model.keep_values_narrow()
    torch.testing.assert_close(model.hidden(tokens), wide, rtol=1e-5, atol=1e-6)
    kernels = describe_kernels(network, SEQUENCE_LENGTH, compiled=False)
    assert (kernels["attention"], kernels["attention_kernel"]) == (NARROW_NAME, "MATH")


@pytest.mark.parametrize("shape", [MLA, EQUAL], ids=["narrow values", "grouped heads"])
def test_a_kernel_is_timed_forward_and_backward_or_says_why_it_cannot_run(
    shape: HeadShape,
) -> None:
    """On a CPU, which has flash attention alone."""
    short = shape.model_copy(update={"sequence_length": 64, "query_size": 24, "value_size": 16})
    calls = []

    def timer(run: Any) -> float:
        calls.append(run())
        return 1.0

    found = measure(candidates(short), measurement(short, "cpu", timer))
    assert found.pop(FLASH) == 1.0
    assert found
    assert all(isinstance(words, str) and "No" in words for words in found.values())
    assert len(calls) == 1


def test_the_store_has_a_place_for_it_beside_compiled_code() -> None:
    folder = Path(layout.compile_cache("0")).parent
    assert Path(layout.attention_choice("0")).parent == folder
