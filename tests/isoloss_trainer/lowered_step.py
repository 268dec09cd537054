"""Traces training steps for an accelerator, backward passes included, on a machine with `fake_driver`; prints JSON."""

from __future__ import annotations

import collections
import json
import sys
from typing import Any

import torch
import torch._dynamo
import transformers
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

from isoloss_trainer import loss
from isoloss_trainer.model import LanguageModel, load_model_class, model_config

STEPS = 3


def trace(model: dict[str, Any], length: int, recompute: bool) -> dict[str, Any]:
    """What the compiler is given in a few steps of a model, of sequences of `length` tokens."""
    forward: list[Any] = []
    backward: list[Any] = []
    compiler = torch.compile
    backend = aot_autograd(fw_compiler=_into(forward), bw_compiler=_into(backward))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    loss._compiled.cache_clear()
    numbers = []
    try:
        torch.compile = lambda function, **options: compiler(function, backend=backend, **options)  # type: ignore[assignment]
        with FakeTensorMode(allow_non_fake_inputs=True):
            with torch.device("cuda"):
                network = load_model_class().from_config(model_config(model), dtype=torch.bfloat16)
            whole = LanguageModel(network, length).train()
            whole.prepare_layers(recompute=recompute, compiled=True)
            for _ in range(STEPS):
                tokens = torch.zeros(2, length + 1, dtype=torch.long, device="cuda")
                summed, *_ = whole.summed_loss(tokens[:, :-1], tokens[:, 1:], 1.0)
                summed.backward()
                numbers.append([len(forward), len(backward)])
            without = [name for name, p in whole.named_parameters() if p.grad is None]
    finally:
        torch.compile = compiler
    return {
        "numbers": numbers,
        "breaks": dict(torch._dynamo.utils.counters["graph_break"]),
        "forward": _operations(forward),
        "backward": _operations(backward),
        "without a gradient": without,
    }


def _into(graphs: list[Any]) -> Any:
    def note(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    return note


def _operations(graphs: list[Any]) -> dict[str, int]:
    nodes = (node for graph in graphs for node in graph.graph.nodes)
    return collections.Counter(str(node.target) for node in nodes if node.op == "call_function")


def main() -> None:
    """Trace what standard input names: [model, length, recompute] each."""
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    # Random numbers need a device.
    transformers.PreTrainedModel.init_weights = lambda _self: None  # type: ignore[method-assign]
    for layer in (torch.nn.Linear, torch.nn.Embedding):
        layer.reset_parameters = lambda _self: None  # type: ignore[method-assign,assignment]
    json.dump([trace(*each) for each in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
