"""What the plan counts is what the learner holds, and a task that does not fit is said not to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from isoloss_contract.records import ExitCode
from isoloss_operator.planning.presets import preset_config
from isoloss_trainer.learner import Learner
from isoloss_trainer.memory import Fit, Footprint, fit, fit_beside_state, footprint, state_bytes
from isoloss_trainer.model import build_network
from isoloss_trainer.plan import DEVICES, plan
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, evaluate_task, train_task
from tests.isoloss_trainer.conftest import Prepared
from tests.support.warm_python import WarmPython

GPU = DEVICES["80 GB"]
LENGTH = 8192


def shapes(preset: str) -> Any:
    with torch.device("meta"):
        return build_network(preset_config(preset))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=lambda m: m["model_type"])
def test_the_state_is_counted_as_the_learner_holds_it(
    prepared: Prepared, model: dict[str, Any], precision: Literal["float32", "bf16"]
) -> None:
    point = train_task(prepared.manifest, prepared.uri, model=model, precision=precision).point
    network = build_network(model, seed=0)
    learner = Learner(network, point, World())
    tensors = list(learner.tensors().values())
    tensors += [*network.parameters(), *(p.grad for p in network.parameters())]
    if precision == "bf16":
        tensors.append(learner._flat._gradient)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    wanted = footprint(network, precision).state
    assert wanted <= sum(storages.values()) < 1.1 * wanted  # parameters are aligned


def test_several_processes_share_what_one_holds() -> None:
    assert state_bytes("bf16") == 24
    assert state_bytes("bf16", 8) == 8 + 16 / 8
    assert state_bytes("float32") == 20


def test_the_largest_preset_needs_several_small_gpus_or_a_large_one() -> None:
    largest, smaller = shapes("moe-500m"), shapes("dense-500m")
    alone = footprint(largest, "bf16")
    assert fit(alone, LENGTH, GPU) is None
    assert fit(footprint(largest, "bf16", 8), LENGTH, GPU) is not None
    assert fit(alone, LENGTH, DEVICES["141 GB"]) is not None
    found = fit(footprint(smaller, "bf16"), LENGTH, GPU)
    assert found is not None
    assert found.sequences >= 2
    assert not found.recompute


def test_layers_are_computed_twice_only_where_a_sequence_does_not_fit_otherwise() -> None:
    needed = Footprint(state=0, head=10, token=100, recomputed_token=10, layer_token=5)
    assert fit_beside_state(needed, 2, 10 + 2 * 100) == Fit(1, recompute=False)
    assert fit_beside_state(needed, 2, 10 + 2 * 100 - 1) == Fit(6, recompute=True)
    assert fit_beside_state(needed, 2, 10 + 2 * 15 - 1) is None


def test_a_plan_says_what_fits_where(prepared: Prepared) -> None:
    large = preset_config("moe-500m")
    task = train_task(
        prepared.manifest, prepared.uri, model=large, sequence_length=LENGTH, precision="bf16"
    )
    first, *rest = plan(task).splitlines()
    assert "80 GB" in first
    assert "141 GB" in first
    assert [row.split()[0] for row in rest] == ["1", "2", "4", "8"]
    assert "does not fit" in rest[0]
    assert "at once" in rest[-1]


def test_the_plan_command_prints_it_and_takes_train_tasks_alone(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    task = train_task(prepared.manifest, prepared.uri)
    (tmp_path / "task.json").write_text(task.model_dump_json())
    arguments = ["-m", "isoloss_trainer", "plan", "--task", "task.json"]
    done = python.run(arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == plan(task)
    other = evaluate_task(prepared.manifest, prepared.uri, "file:///model")
    (tmp_path / "task.json").write_text(other.model_dump_json())
    refused = python.run(arguments, folder=tmp_path)
    assert refused.returncode == ExitCode.BAD_CONFIGURATION
    assert "the task is of kind evaluate" in refused.stdout
