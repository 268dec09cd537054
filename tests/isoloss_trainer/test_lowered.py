"""The branch for accelerators, traced with tensors that have no memory: graphs, copies to the host, grouped products.

torch runs no backward pass of such tensors without a driver: whole steps are traced in a process with one that does nothing
(fake_driver.py), where there is a C compiler. `make gpu-check` shows the rest where there is a device.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensorMode

from isoloss_operator.commands.derived_proxies import derive_proxy
from isoloss_trainer import attention, loss
from isoloss_trainer.experts import ExpertBalance
from isoloss_trainer.model import LanguageModel, load_model_class, model_config
from tests.isoloss_trainer import fake_driver
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, QWEN3_MOE, SEQUENCE_LENGTH
from tests.isoloss_trainer.lowered_step import noting, operations
from tests.support.published_configs import PUBLISHED

TO_THE_HOST = ("aten.item", "_local_scalar_dense", "nonzero", "_assert_scalar")
SHAPE = {
    "hidden_size": 64,
    "vocab_size": 1024,
    "num_hidden_layers": 10,
    "router_aux_loss_coef": 0.01,
}
"""With more layers than torch compiles one function anew, which it refuses from the ninth time on."""


@pytest.fixture
def graphs() -> Iterator[list[Any]]:
    """What the compiler is given, on what takes itself for a Hopper GPU."""
    found: list[Any] = []
    with noting(found, []):
        yield found


@pytest.mark.parametrize(
    ("training", "model"),
    [
        pytest.param(True, LLAMA, id="a step-llama"),
        pytest.param(True, DEEPSEEK, id="a step-deepseek_v3"),
        pytest.param(True, QWEN3_MOE, id="a step-qwen3_moe"),
        pytest.param(False, LLAMA, id="an evaluation-llama", marks=pytest.mark.whole),
        pytest.param(False, DEEPSEEK, id="an evaluation-deepseek_v3"),
        pytest.param(False, QWEN3_MOE, id="an evaluation-qwen3_moe", marks=pytest.mark.whole),
    ],
)
def test_layers_and_loss_are_compiled_once_and_wait_for_nothing(
    graphs: list[Any], model: dict[str, Any], training: bool
) -> None:
    """Layers break no graph, which `fullgraph` would raise; experts are one grouped product for each matrix. Nor is
    anything compiled anew for another layer, or a batch of another size."""
    compile_twice(graphs, {**model, **SHAPE}, training=training)
    kinds = 2 if model is DEEPSEEK else 1  # its first layer is dense
    assert len(graphs) == kinds + 1, "a layer is not one graph"
    found = operations(graphs)
    assert not [name for name in found if any(word in name for word in TO_THE_HOST)]
    assert found["aten._grouped_mm.default"] == (0 if model is LLAMA else 2)
    assert found["aten.topk.default"] == (0 if model is LLAMA else 1)


@pytest.mark.whole
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PUBLISHED)
def test_layers_of_proxies_of_every_family_are_compiled_once_and_wait_for_nothing(
    graphs: list[Any], name: str, training: bool
) -> None:
    """Two kinds of layers at most: those of one kind differ by their windows alone, which are no code."""
    model = {**derive_proxy(PUBLISHED[name], 400_000_000), "vocab_size": 1024}
    compile_twice(graphs, model, training=training)
    assert len(graphs) <= 2 + 1
    assert not [each for each in operations(graphs) if any(word in each for word in TO_THE_HOST)]


def compile_twice(graphs: list[Any], model: dict[str, Any], *, training: bool) -> None:
    """Layers and loss, for batches of two sizes: the second one compiles nothing anew, and no graph breaks."""
    config = model_config(model)
    numbers = []
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with torch.device("cuda"):
            network = load_model_class().from_config(config, dtype=torch.bfloat16)
        whole = LanguageModel(network, SEQUENCE_LENGTH).train(training)
        ExpertBalance(network, SEQUENCE_LENGTH)
        whole.prepare_layers(recompute=False, compiled=True)
        for batch in (8, 16):
            tokens = torch.zeros(2, SEQUENCE_LENGTH + 1, dtype=torch.long, device="cuda")
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
            if training:
                whole.summed_loss(inputs, targets, 1.0 / batch)
            else:
                whole.token_losses(inputs, targets)
            numbers.append(len(graphs))
    assert numbers[0] == numbers[1], "compiled again"
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("narrow", [True, False])
def test_values_are_padded_unless_the_kernel_takes_them_narrow(
    graphs: list[Any], monkeypatch: pytest.MonkeyPatch, narrow: bool
) -> None:
    """Asked while the graph is made, of a device that computes it."""
    asked = []

    def takes(*facts: Any) -> bool:
        asked.append(facts)
        return narrow

    takes = torch.compiler.assume_constant_result(takes)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(attention, "takes_narrow_values", takes)
    config = model_config({**DEEPSEEK, **SHAPE, "num_hidden_layers": 2, "v_head_dim": 4})
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with torch.device("cuda"):
            network = load_model_class().from_config(config, dtype=torch.bfloat16)
        whole = LanguageModel(network, SEQUENCE_LENGTH).train()
        whole.prepare_layers(recompute=False, compiled=True)
        whole.hidden(torch.zeros(2, SEQUENCE_LENGTH, dtype=torch.long, device="cuda"))
    heads = DEEPSEEK["num_attention_heads"]
    query = DEEPSEEK["qk_nope_head_dim"] + DEEPSEEK["qk_rope_head_dim"]
    device = torch.device("cuda", 0)
    assert set(asked) == {(device, torch.bfloat16, heads, SEQUENCE_LENGTH, query, 4)}
    padded = operations(graphs)["aten.constant_pad_nd.default"]
    assert padded == (0 if narrow else 2)  # the dense layer and those with experts


def test_the_loss_reads_logits_as_an_online_softmax(graphs: list[Any]) -> None:
    """The compiler knows one by its largest logit and the sum of exponentials below it."""
    with FakeTensorMode(), torch.no_grad():
        hidden = torch.zeros(8, 16, dtype=torch.bfloat16, device="cuda")
        weight = torch.zeros(32, 16, dtype=torch.bfloat16, device="cuda")
        targets = torch.zeros(8, dtype=torch.long, device="cuda")
        loss._compiled(loss.fused_chunk_step)(hidden, weight, targets, torch.ones(()), 0.0)
    (graph,) = graphs
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert "aten.logsumexp.default" not in names
    first = names.index("aten.amax.default")
    assert names[first + 1 : first + 4] == [
        "aten.sub.Tensor",
        "aten.exp.default",
        "aten.sum.dim_IntList",
    ]


STEPS = [(LLAMA, False), (DEEPSEEK, True), (QWEN3_MOE, False)]
"""Models, and whether their layers are recomputed."""


@pytest.mark.whole
@pytest.mark.skipif(bool(fake_driver.why_none()), reason=fake_driver.why_none() or "none")
def test_whole_steps_are_compiled_once_and_wait_for_nothing(tmp_path: Path) -> None:
    """Forward and backward: no graph breaks, nothing is compiled again, experts' gradients are grouped products."""
    asked = [({**model, **SHAPE}, SEQUENCE_LENGTH, recompute) for model, recompute in STEPS]
    done = subprocess.run(
        [sys.executable, "-m", "tests.isoloss_trainer.lowered_step"],
        input=json.dumps(asked),
        env={**os.environ, **fake_driver.build(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "CUDACachingAllocator" in done.stderr:
        pytest.skip(
            f"torch {torch.__version__} takes memory of the device for tensors that have none"
        )
    assert done.returncode == 0, done.stderr[-3000:]
    for (model, recompute), found in zip(STEPS, json.loads(done.stdout), strict=True):
        kinds = 2 if model is DEEPSEEK else 1  # its first layer is dense
        # The loss has its gradients in its one graph.
        assert found["numbers"] == 3 * [[kinds + 1, kinds]], model["model_type"]
        assert found["breaks"] == {}
        assert found["without a gradient"] == []
        names = [*found["forward"], *found["backward"]]
        assert not [name for name in names if any(word in name for word in TO_THE_HOST)]
        # Two matrices, each with a gradient of its own and one for what goes in; recomputed, the first once more.
        products = 0 if model is LLAMA else 5 if recompute else 4
        assert found["backward"].get("aten._grouped_mm.default", 0) == products
        # Rows are gathered, never added up by number; recomputed, the inverse order of tokens once more.
        written = found["backward"].get("aten.index_put.default", 0)
        assert written == (1 if model is not LLAMA and recompute else 0)
