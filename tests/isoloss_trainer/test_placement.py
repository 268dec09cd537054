"""Where a checkpoint's weights are placed: whole, spread or refused; and that it changes no loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model

from isoloss_contract import layout
from isoloss_trainer import placement
from isoloss_trainer.evaluate import evaluate, load_copies
from isoloss_trainer.evaluation import fitting_losses
from isoloss_trainer.foreign_model import ForeignModel, load_network
from isoloss_trainer.model import build_network
from isoloss_trainer.placement import (
    Placement,
    place,
    room_beside_work,
    room_for_weights,
    weight_bytes,
)
from isoloss_trainer.termination import Interruption, OutOfMemory
from isoloss_trainer.world import World
from tests.isoloss_trainer import builders
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.ranks import run_ranks
from tests.isoloss_trainer.test_evaluate import save
from tests.support.warm_python import WarmPython

DEEP = {**builders.LLAMA, "num_hidden_layers": 6}
TIED = {**DEEP, "tie_word_embeddings": True}
EXPERTS = [
    {**config, "num_hidden_layers": 6} for config in (builders.DEEPSEEK, builders.QWEN3_MOE)
]
COHERE = {
    "model_type": "cohere", "vocab_size": builders.VOCABULARY, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 6, "num_attention_heads": 2, "max_position_embeddings": 64,
    "logit_scale": 4.0, "initializer_range": 0.2,
}  # fmt: skip
MODELS = [DEEP, TIED, *EXPERTS, COHERE]


def name(config: dict[str, Any]) -> str:
    return config["model_type"] + (", tied" if config.get("tie_word_embeddings") else "")


def shapes(config: dict[str, Any]) -> Any:
    with torch.device("meta"):
        return build_network(config)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.arange(2 * (builders.SEQUENCE_LENGTH + 1)).view(2, -1) % builders.VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


# ---------------------------------------------------------------------------------- the decision


def test_weights_that_fit_on_one_device_are_not_spread() -> None:
    model = shapes(DEEP)
    assert place(model, weight_bytes(model), 8) == Placement({"": 0}, 1)


@pytest.mark.parametrize("config", MODELS, ids=name)
@pytest.mark.parametrize("parts", [1.5, 2.5])
def test_the_layers_go_to_as_few_devices_as_hold_them(
    config: dict[str, Any], parts: float
) -> None:
    model = shapes(config)
    room = int(weight_bytes(model) / parts)
    found = place(model, room, 8)
    assert parts < found.devices <= parts + 2
    assert set(found.modules.values()) == set(range(found.devices))
    used = [0] * found.devices
    for parameter_name, parameter in model.named_parameters():
        (module,) = [m for m in found.modules if parameter_name.startswith(f"{m}.")]
        used[found.modules[module]] += parameter.numel() * parameter.element_size()
    assert max(used) <= room
    layers = [found.modules[f"model.layers.{number}"] for number in range(6)]
    assert layers == sorted(layers), "states would go to and fro between devices"


@pytest.mark.parametrize(
    ("device_gib", "parameters_in_billions", "devices"),
    [(80, 8, 1), (80, 30, 1), (80, 72, 3), (140, 60, 1), (140, 70, 2), (8, 1, 1)],
)
def test_number_of_devices_for_a_checkpoint_in_bfloat16(
    device_gib: int, parameters_in_billions: int, devices: int
) -> None:
    room = room_beside_work(device_gib * 2**30)
    assert -(-parameters_in_billions * 2 * 10**9 // room) == devices


def test_weights_are_counted_in_the_precision_that_they_are_loaded_in() -> None:
    model = shapes(DEEP)
    assert weight_bytes(model.to(torch.bfloat16)) == pytest.approx(
        weight_bytes(shapes(DEEP)) / 2, rel=0.01
    )
    tied, untied = weight_bytes(shapes(TIED)), weight_bytes(shapes(DEEP))
    assert untied - tied == builders.VOCABULARY * DEEP["hidden_size"] * 4


@pytest.mark.parametrize(("room", "devices"), [(10_000, 4), (100, 1)])
def test_weights_that_fit_nowhere_are_refused_with_both_sizes(room: int, devices: int) -> None:
    model = shapes(DEEP)
    with pytest.raises(OutOfMemory) as caught:
        place(model, room, devices)
    assert caught.value.code == "CheckpointTooLarge"
    assert f"{weight_bytes(model):,} bytes" in caught.value.message
    assert f"{room:,}" in caught.value.message


def test_enough_memory_in_total_but_not_for_a_single_layer_is_refused() -> None:
    """The embeddings of 384 x 32 weights are 49,152 bytes: they go to no device of 40,000."""
    model = shapes(DEEP)
    assert weight_bytes(model) < 40_000 * 16
    with pytest.raises(OutOfMemory, match="available: 16 devices with 40,000 bytes each"):
        place(model, 40_000, 16)


def test_a_container_may_use_its_limit_and_not_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, _ = room_for_weights(World())
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(placement, "CGROUP_LIMITS", (limit, tmp_path / "absent"))
    limit.write_text("max\n")
    unlimited, _ = room_for_weights(World())
    assert unlimited >= machine
    limit.write_text("1000000\n")
    assert room_for_weights(World()) == (950_000, 1)
    assert room_for_weights(World(0, 2)) == (475_000, 1)


def test_a_checkpoint_larger_than_the_machine_is_refused_before_it_is_loaded(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("50000")
    monkeypatch.setattr(placement, "CGROUP_LIMITS", (limit,))
    monkeypatch.setattr("isoloss_trainer.foreign_model.load_network", None)
    build_network(DEEP, seed=0).save_pretrained(tmp_path / "model")
    config = prepared.evaluate_task(tmp_path / "model").config
    with pytest.raises(OutOfMemory, match="available: 47,500 bytes"):
        load_copies(tmp_path / "model", config, World(), builders.quiet())


# ------------------------------------------------------------------------------- who reads what


def test_processes_without_a_copy_read_nothing_and_the_others_everything_once() -> None:
    for size, devices, readers in ((8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 2, 1), (1, 4, 1)):
        worlds = [World(rank, size).with_copies_on(devices) for rank in range(size)]
        parts = [world.share(13) for world in worlds]
        assert [i for part in parts for i in range(13)[part]] == list(range(13))
        holding = [world.rank for world in worlds if world.holds_copy]
        assert holding == [number * devices for number in range(readers)]


def test_a_copy_starts_on_the_device_of_its_process() -> None:
    found = Placement({"model.embed_tokens": 0, "lm_head": 1}, 2)
    assert found.device_map(6) == {"model.embed_tokens": 6, "lm_head": 7}


ONE_COPY = """
import sys
from pathlib import Path
import isoloss_trainer.evaluate as trainer
from isoloss_contract.records import EvaluateTask
from isoloss_trainer.termination import Interruption
from isoloss_trainer.placement import Placement
from tests.isoloss_trainer.builders import quiet
trainer.place = lambda *_: Placement({"": 0}, 2)
task = EvaluateTask.model_validate_json(sys.argv[1])
print(trainer.evaluate(task, Path(sys.argv[2]), Interruption(), quiet()))
"""


@pytest.mark.slow
def test_two_processes_for_one_copy_give_the_loss_of_one(
    prepared: Prepared, corpus: Path, tmp_path: Path, python: WarmPython
) -> None:
    """As on two accelerators: the second process has only shapes and takes part in every sum."""
    folder = save(tmp_path / "model", builders.LLAMA, corpus / "tokenizer")
    task = prepared.evaluate_task(folder)
    alone = evaluate(task, tmp_path, Interruption(), builders.quiet())
    prepared.store.remove(layout.evaluation_result(task.config.key))
    ends = run_ranks(python, ["-c", ONE_COPY, task.model_dump_json(), str(tmp_path)], 2)
    assert [end.stdout.splitlines()[-1:] for end in ends] == [[alone]] * 2, ends


# -------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("config", MODELS, ids=name)
def test_a_dispatched_model_has_the_losses_of_a_plain_one(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """Half of the layers are on a disk, so that every step goes through accelerate's hooks."""
    inputs, targets = batch()
    wanted = ForeignModel(build_network(config, seed=0).eval(), builders.SEQUENCE_LENGTH)
    losses = wanted.token_losses(inputs, targets)
    network = build_network(config, seed=0).eval()
    model = shapes(config)
    found = place(model, int(weight_bytes(model) / 1.5), 4).modules
    on_disk = {n for n in found if n.startswith("model.layers.") and n[-1] in "245"}
    devices = {n: "disk" if n in on_disk else "cpu" for n in found}
    dispatched = dispatch_model(network, devices, main_device="cpu", offload_dir=str(tmp_path))
    assert any(parameter.is_meta for parameter in dispatched.parameters())
    found_losses = ForeignModel(dispatched, builders.SEQUENCE_LENGTH).token_losses(inputs, targets)
    assert torch.equal(found_losses, losses)


def test_a_checkpoint_loaded_by_a_device_map_is_the_checkpoint(tmp_path: Path) -> None:
    network = build_network(DEEP, seed=0)
    network.save_pretrained(tmp_path, max_shard_size="20KB")
    on_cpu: Any = {"": "cpu"}
    loaded = load_network(tmp_path, "m", torch.float32, on_cpu)
    for key, value in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value)


@contextmanager
def two_devices(config: dict[str, Any]) -> Iterator[Any]:
    """A network spread over two accelerators that are not there: shapes, types and devices are real,
    and mixing devices is an error, but no number is computed."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = shapes(config)
    found = place(model, int(weight_bytes(model) / 1.5), 2).modules
    with FakeTensorMode():
        network = build_network(config).eval()
        for module_name, number in found.items():
            device = torch.device("cuda", number)
            module = network.get_submodule(module_name)
            for part in module.modules():
                for key, value in part._parameters.items():
                    if value is not None:
                        moved = value.detach().to(device)
                        part._parameters[key] = torch.nn.Parameter(moved, requires_grad=False)
                for key, buffer in part._buffers.items():
                    part._buffers[key] = None if buffer is None else buffer.to(device)
            add_hook_to_module(module, AlignDevicesHook(execution_device=device))
        if hasattr(network.config, "num_experts_per_tok"):
            network.set_experts_implementation("batched_mm")  # the default asks the driver
        yield network


@pytest.mark.parametrize("config", [DEEP, TIED, *EXPERTS], ids=name)
def test_a_model_on_two_accelerators_uses_tensors_on_its_own_devices(
    config: dict[str, Any],
) -> None:
    with two_devices(config) as network:
        devices = {str(parameter.device) for parameter in network.parameters()}
        assert devices == {"cuda:0", "cuda:1"}
        model = ForeignModel(network, builders.SEQUENCE_LENGTH)
        inputs, targets = (tokens.to("cuda:0") for tokens in batch())
        # The devices are imagined: there is no driver that the compiler could ask.
        with torch.compiler.set_stance("force_eager"):
            losses = model.token_losses(inputs, targets)
        assert (losses.device, losses.shape) == (model.head.device, targets.shape)
        found = torch.zeros(targets.shape, device="cuda:0")
        found[0:2] = losses  # as run_losses collects them


# --------------------------------------------------------------------------------------- memory


def refuse_above(monkeypatch: pytest.MonkeyPatch, sequences: int) -> list[int]:
    """A device on which more than `sequences` at once do not fit."""
    tried: list[int] = []
    original = ForeignModel.hidden

    def hidden(self: ForeignModel, inputs: torch.Tensor) -> torch.Tensor:
        tried.append(len(inputs))
        if len(inputs) > sequences:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, inputs)

    monkeypatch.setattr(ForeignModel, "hidden", hidden)
    return tried


def test_out_of_memory_halves_the_batch_and_changes_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ForeignModel(build_network(builders.LLAMA, seed=0).eval(), builders.SEQUENCE_LENGTH)
    inputs, targets = (torch.cat([tokens, tokens + 1, tokens]) for tokens in batch())
    targets %= builders.VOCABULARY
    wanted = model.token_losses(inputs, targets)
    tried = refuse_above(monkeypatch, 2)
    torch.testing.assert_close(fitting_losses(model.token_losses, inputs, targets), wanted)
    assert tried == [6, 3, 1, 2, 3, 1, 2]


def test_one_sequence_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ForeignModel(build_network(builders.LLAMA, seed=0).eval(), builders.SEQUENCE_LENGTH)
    refuse_above(monkeypatch, 0)
    with pytest.raises(OutOfMemory, match="one sequence of 32 tokens does not fit"):
        fitting_losses(model.token_losses, *batch())
