"""The branch for accelerators, traced with tensors that have no memory: graphs, copies to the host, grouped products.

Forward passes and the head's loss with its gradients alone: torch runs no backward pass of such tensors without a
driver. `make gpu-check` shows the rest where there is a device.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

from isoloss_trainer import loss
from isoloss_trainer.model import LanguageModel, load_model_class, model_config
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, QWEN3_MOE, SEQUENCE_LENGTH

TO_THE_HOST = ("aten.item", "_local_scalar_dense", "nonzero", "_assert_scalar")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the compiler is given, on what takes itself for a Hopper GPU."""
    found: list[Any] = []

    def note(graph: Any, _inputs: Any) -> Any:
        found.append(graph)
        return make_boxed_func(graph.forward)

    compiler, backend = torch.compile, aot_autograd(fw_compiler=note)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(
        torch,
        "compile",
        lambda function, **options: compiler(function, backend=backend, **options),
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    loss._compiled.cache_clear()
    yield found
    loss._compiled.cache_clear()
    torch._dynamo.reset()


def operations(graphs: list[Any]) -> collections.Counter[str]:
    nodes = (node for graph in graphs for node in graph.graph.nodes)
    return collections.Counter(str(node.target) for node in nodes if node.op == "call_function")


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK, QWEN3_MOE], ids=lambda m: m["model_type"])
@pytest.mark.parametrize("training", [True, False], ids=["a step", "an evaluation"])
def test_layers_and_loss_are_compiled_once_and_wait_for_nothing(
    graphs: list[Any], model: dict[str, Any], training: bool
) -> None:
    """Layers break no graph, which `fullgraph` would raise; experts are one grouped product for each matrix."""
    config = model_config({**model, "hidden_size": 64, "vocab_size": 1024})
    numbers = []
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with torch.device("cuda"):
            network = load_model_class().from_config(config, dtype=torch.bfloat16)
        whole = LanguageModel(network, SEQUENCE_LENGTH).train(training)
        whole.prepare_layers(recompute=False, compiled=True)
        for _ in range(3):
            tokens = torch.zeros(2, SEQUENCE_LENGTH + 1, dtype=torch.long, device="cuda")
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
            if training:
                whole.summed_loss(inputs, targets, 1.0)
            else:
                whole.token_losses(inputs, targets)
            numbers.append(len(graphs))
    assert numbers[0] == numbers[2], "compiled again"
    kinds = 2 if model is DEEPSEEK else 1  # its first layer is dense
    assert numbers[0] == kinds + 1, "a layer is not one graph"
    assert not torch._dynamo.utils.counters["graph_break"]
    found = operations(graphs)
    assert not [name for name in found if any(word in name for word in TO_THE_HOST)]
    assert found["aten._grouped_mm.default"] == (0 if model is LLAMA else 2)
    assert found["aten.topk.default"] == (0 if model is LLAMA else 1)


def test_the_loss_reads_logits_as_an_online_softmax(graphs: list[Any]) -> None:
    """The compiler knows one by its largest logit and the sum of exponentials below it."""
    with FakeTensorMode(), torch.no_grad():
        hidden = torch.zeros(8, 16, dtype=torch.bfloat16, device="cuda")
        weight = torch.zeros(32, 16, dtype=torch.bfloat16, device="cuda")
        targets = torch.zeros(8, dtype=torch.long, device="cuda")
        loss._compiled(loss.fused_chunk_step)(hidden, weight, targets, 1.0, 0.0)
    (graph,) = graphs
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert "aten.logsumexp.default" not in names
    first = names.index("aten.amax.default")
    assert names[first + 1 : first + 4] == [
        "aten.sub.Tensor",
        "aten.exp.default",
        "aten.sum.dim_IntList",
    ]
