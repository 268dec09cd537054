"""Traces training steps for an accelerator, backward passes included, on a machine with `fake_driver`; prints JSON."""

import collections
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

from isoloss_trainer import loss
from isoloss_trainer.experts import ExpertBalance
from isoloss_trainer.model import LanguageModel, load_model_class, model_config

STEPS = 3


def trace(model: dict[str, Any], length: int, recompute: bool) -> dict[str, Any]:
    """What the compiler is given in a few steps of a model, of sequences of `length` tokens."""
    forward: list[Any] = []
    backward: list[Any] = []
    numbers = []
    with noting(forward, backward), FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            network = load_model_class().from_config(model_config(model), dtype=torch.bfloat16)
        whole = LanguageModel(network, length).train()
        balance = ExpertBalance(network, length)
        whole.prepare_layers(recompute=recompute, compiled=True)
        for _ in range(STEPS):
            tokens = torch.zeros(2, length + 1, dtype=torch.long, device="cuda")
            summed, *_ = whole.summed_loss(tokens[:, :-1], tokens[:, 1:], 1.0)
            penalty = balance.take_penalty(1.0)
            with balance.uncounted():
                (summed if penalty is None else summed + penalty).backward()
            numbers.append([len(forward), len(backward)])
        without = [name for name, p in whole.named_parameters() if p.grad is None]
        breaks = dict(torch._dynamo.utils.counters["graph_break"])
    return {
        "numbers": numbers,
        "breaks": breaks,
        "forward": operations(forward),
        "backward": operations(backward),
        "without a gradient": without,
    }


@contextlib.contextmanager
def noting(forward: list[Any], backward: list[Any]) -> Iterator[None]:
    """Let torch.compile run what it is given as it is, on what takes itself for a Hopper GPU, and note the graphs."""
    # Here, because every worker of pytest imports this module, and one of them calls it.
    from torch._dynamo.backends.common import aot_autograd

    compiler = torch.compile
    backend = aot_autograd(fw_compiler=_into(forward), bw_compiler=_into(backward))

    def compile_noting(function: Any, **options: Any) -> Any:
        return compiler(function, backend=backend, **options)

    _forget()
    with (
        patch.object(torch, "compile", compile_noting),
        patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
    ):
        yield
    _forget()


def _forget() -> None:
    """What was compiled before."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    loss._compiled.cache_clear()


def _into(graphs: list[Any]) -> Any:
    from functorch.compile import make_boxed_func

    def note(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    return note


def operations(graphs: list[Any]) -> collections.Counter[str]:
    """How often each operation is in the graphs."""
    nodes = (node for graph in graphs for node in graph.graph.nodes)
    return collections.Counter(str(node.target) for node in nodes if node.op == "call_function")


def main() -> None:
    """Trace what standard input names: [model, length, recompute] each."""
    # Random numbers need a device.
    transformers.PreTrainedModel.init_weights = lambda _self: None  # type: ignore[method-assign]
    for layer in (torch.nn.Linear, torch.nn.Embedding):
        layer.reset_parameters = lambda _self: None  # type: ignore[method-assign,assignment]
    json.dump([trace(*each) for each in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
