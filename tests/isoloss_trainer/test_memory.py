"""What the plan counts is what the learner holds, and a task that does not fit is said not to."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from isoloss_contract.footprint import Fit, Footprint, fit, fit_beside_state
from isoloss_contract.memory import DEVICES, PROCESS_BYTES, state_memory
from isoloss_contract.records import ExitCode
from isoloss_operator.planning.models import SUPPORTED_MODEL_TYPES, model_shape
from isoloss_trainer import learner as learning
from isoloss_trainer.learner import Learner, footprint, host_footprint, micro_batch, plan, shape_of
from isoloss_trainer.model import build_network
from isoloss_trainer.termination import BadConfiguration
from isoloss_trainer.world import World
from scripts.memory_table import LIKES
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, QWEN3, QWEN3_MOE, SEQUENCE_LENGTH
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.families import FAMILIES as OTHER_FAMILIES
from tests.support.models import example_model
from tests.support.warm_python import WarmPython

GPU = DEVICES["80 GB"]
LENGTH = 8192


MODELS = {
    **{name: example_model(name) for name in ("dense-100m", "dense-500m", "moe-100m", "moe-500m")},
    **LIKES,
}


FAMILIES = [
    *MODELS.values(),
    LLAMA,
    DEEPSEEK,
    {**DEEPSEEK, "q_lora_rank": None, "n_shared_experts": 2},
    QWEN3,
    QWEN3_MOE,
    {**LLAMA, "model_type": "mistral"},
    {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    *({"model_type": kind, **OTHER_FAMILIES[kind]} for kind in SUPPORTED_MODEL_TYPES),
]


@pytest.mark.parametrize("accelerators", [1, 8, 16])
@pytest.mark.parametrize("name", MODELS)
def test_isoloss_plan_states_what_the_trainer_counts(name: str, accelerators: int) -> None:
    """Of the state exactly; of the host's memory the rounding of single tensors lies within its bounds."""
    with torch.device("meta"):
        network = build_network(MODELS[name])
    number = sum(parameter.numel() for parameter in network.parameters())
    counted, stated = (
        footprint(network, "bf16", accelerators),
        state_memory(number, accelerators),
    )
    host = host_footprint(network, accelerators)
    assert stated.device == pytest.approx(counted.state, rel=1e-6)
    assert stated.host_build == host.build
    least, most = stated.host_train
    assert least <= host.train <= most


@pytest.mark.parametrize("model", FAMILIES, ids=lambda m: m["model_type"])
def test_isoloss_plan_counts_activations_from_what_the_trainer_counts_them_from(
    model: dict[str, Any],
) -> None:
    """Without the model: from its config alone, to the number."""
    with torch.device("meta"):
        network = build_network(model)
    assert model_shape(model) == shape_of(network)


def test_nodes_share_the_training_state_and_have_processes_of_their_own() -> None:
    whole, half = state_memory(10**9, 8), state_memory(10**9, 8, nodes=2)
    assert half.device == whole.device
    assert whole.host_build - half.host_build == 4 * PROCESS_BYTES
    assert half.host_train[0] == whole.host_train[0] / 2
    assert state_memory(10**9, 16) == state_memory(10**9, 16, nodes=2)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("name", ["dense-100m", "dense-500m", "moe-100m", "moe-500m"])
def test_a_run_begins_with_what_its_plan_says(
    monkeypatch: pytest.MonkeyPatch, prepared: Prepared, name: str, device: int
) -> None:
    """On a device that is its own: all but the gradients of the state is there already."""
    with torch.device("meta"):
        network = build_network(example_model(name))
    given = {"batch_size": 256, "sequence_length": LENGTH, "precision": "bf16"}
    point = prepared.train_task(**given).point
    needed = footprint(network, "bf16")
    reserved = needed.state * 16 // 20
    free = device - reserved - 600 * 2**20
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, device))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved)
    planned = fit(needed, LENGTH, device) or Fit(1, recompute=True)
    assert learning._fitting(network, point, World(device="cuda:0")) == planned
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20 * 2**30, device))
    beside = learning._fitting(network, point, World(device="cuda:0"))
    assert (not beside.recompute, beside.sequences) < (not planned.recompute, planned.sequences)


def shapes(name: str) -> Any:
    with torch.device("meta"):
        return build_network(example_model(name))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=lambda m: m["model_type"])
def test_the_state_is_counted_as_the_learner_holds_it_after_a_step(
    prepared: Prepared, model: dict[str, Any], precision: Literal["float32", "bf16"]
) -> None:
    point = prepared.train_task(model=model, precision=precision).point
    learner = Learner(build_network(model, seed=0), point, World())
    learner.step(torch.zeros(4, SEQUENCE_LENGTH + 1, dtype=torch.long), 128)
    parameters = list(learner.model.network.parameters())
    tensors = [*learner.tensors().values(), *(p.grad for p in parameters if p.grad is not None)]
    held = sum(t.numel() * t.element_size() for t in tensors)
    wanted = footprint(learner.model.network, precision).state
    assert wanted <= held < wanted + 4096  # steps and biases


def test_several_processes_share_what_one_holds() -> None:
    network = shapes("dense-500m")
    one, eight = (footprint(network, "bf16", count) for count in (1, 8))
    assert one.state == 20 * sum(p.numel() for p in network.parameters())
    assert eight.state == one.state // 8
    assert (eight.whole, eight.head) == (one.whole, one.head)
    assert footprint(network, "float32").whole == 0


def test_a_model_of_8_billion_parameters_continues_on_one_node_of_80_gb(
    prepared: Prepared,
) -> None:
    """From a checkpoint in bfloat16, in host memory of 20 bytes a parameter and 3 GiB a process."""
    with torch.device("meta"):
        network = build_network(LIKES["8B"])
    number = sum(p.numel() for p in network.parameters())
    assert number == pytest.approx(8.0e9, rel=0.01)
    assert fit(footprint(network, "bf16", 8), LENGTH, GPU) is not None
    host = host_footprint(network, 8, "bf16")
    assert host.build == 2 * number + 8 * PROCESS_BYTES
    assert 16 * number < host.train - 8 * PROCESS_BYTES < 20 * number


def test_the_largest_example_needs_several_small_gpus_or_a_large_one() -> None:
    largest, smaller = shapes("moe-500m"), shapes("dense-500m")
    alone = footprint(largest, "bf16")
    assert fit(alone, LENGTH, GPU) == Fit(4, recompute=True)
    assert fit(footprint(largest, "bf16", 8), LENGTH, GPU) is not None
    assert fit(alone, LENGTH, DEVICES["141 GB"]) is not None
    found = fit(footprint(smaller, "bf16"), LENGTH, GPU)
    assert found is not None
    assert found.sequences >= 2
    assert not found.recompute


def test_layers_are_computed_twice_only_where_a_sequence_does_not_fit_otherwise() -> None:
    needed = Footprint(state=0, whole=3, head=7, token=100, recomputed_token=10, layer_token=5)
    assert fit_beside_state(needed, 2, 10 + 2 * 100) == Fit(1, recompute=False)
    assert fit_beside_state(needed, 2, 10 + 2 * 100 - 1) == Fit(6, recompute=True)
    assert fit_beside_state(needed, 2, 10 + 2 * 15 - 1) is None


@pytest.mark.parametrize(
    ("share", "taken"),
    [(4, 4), (64, 64), (96, 48), (256, 64), (384, 64), (362, 64), (257, 64), (67, 64), (62, 62)],
)
def test_a_batch_without_a_fitting_divisor_takes_no_fewer_sequences_at_once(
    share: int, taken: int
) -> None:
    """Equal parts, as one shape is compiled; 362 sequences are not trained two by two where 64 fit."""
    assert micro_batch(share, 64) == taken


def test_a_plan_says_what_fits_where(prepared: Prepared) -> None:
    """Also of what a family has under other names."""
    given: dict[str, Any] = {"sequence_length": LENGTH, "precision": "bf16"}
    for batch, words in ((24, "12 at once"), (23, "16 at once")):
        small = prepared.train_task(model=example_model("dense-100m"), batch_size=batch, **given)
        assert words in plan(small).splitlines()[1]
    large = prepared.train_task(model=example_model("moe-500m"), **given)
    first, *rest = plan(large).splitlines()
    assert "80 GB" in first
    assert "141 GB" in first
    assert [row.split()[0] for row in rest] == ["1", "2", "4"]  # a batch of 4 has no use for more
    assert "recomputed" in rest[0]
    assert "1 at once" in rest[-1]
    gpt2 = {"model_type": "gpt2", **OTHER_FAMILIES["gpt2"]}
    assert all("at once" in row for row in plan(prepared.train_task(model=gpt2)).splitlines()[1:])


@pytest.mark.parametrize("kind", ["gemma3", "mamba"])
def test_a_plan_refuses_a_family_that_cannot_be_counted(prepared: Prepared, kind: str) -> None:
    model = {"model_type": kind, **OTHER_FAMILIES[kind]}
    with pytest.raises(BadConfiguration, match=f"of type {kind} cannot be trained") as caught:
        plan(prepared.train_task(model=model))
    assert (caught.value.code, caught.value.exit_code) == ("BadModel", ExitCode.BAD_CONFIGURATION)


def test_the_plan_command_prints_it_and_takes_train_tasks_alone(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    task = prepared.train_task()
    (tmp_path / "task.json").write_text(task.model_dump_json())
    arguments = ["-m", "isoloss_trainer", "plan", "--task", "task.json"]
    done = python.run(arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == plan(task)
    other = prepared.evaluate_task("file:///model")
    (tmp_path / "task.json").write_text(other.model_dump_json())
    refused = python.run(arguments, folder=tmp_path)
    assert refused.returncode == ExitCode.BAD_CONFIGURATION
    assert "the task is of kind evaluate" in refused.stdout
