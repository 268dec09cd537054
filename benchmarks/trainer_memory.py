"""What each proxy takes of a GPU's memory, counted without a GPU: `make bench-trainer ARGS=--dry`.

Every shape of the GPU benchmarks goes through the trainer's own model and loss on the meta device, forward
and backward: shapes that do not fit together fail here. Two counts of one sequence's activations stand
beside the plan's own (isoloss_trainer.memory): of the compiled body, what the compiler's partitioner
keeps for the backward pass; and of a plain run, the peak of all tensors alive. Attention is a stand-in
that keeps what flash attention keeps.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import isoloss_trainer.attention as attention
from isoloss_operator.planning.presets import preset_config
from isoloss_trainer.loss import fused_chunk_step
from isoloss_trainer.memory import Footprint, fit, footprint, state_bytes
from isoloss_trainer.model import LanguageModel, build_network
from isoloss_trainer.plan import DEVICES, PROCESSES, in_words, total_bytes

LENGTH = 8192
PRESETS = ("dense-100m", "dense-500m", "moe-100m", "moe-500m")


@torch.library.custom_op("isoloss_dry::flash", mutates_args=())
def flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flash attention's output and log-sum-exp; shapes only."""
    raise NotImplementedError


@torch.library.custom_op("isoloss_dry::flash_backward", mutates_args=())
def flash_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of its operands; shapes only."""
    raise NotImplementedError


@flash.register_fake
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    del key, value
    return torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=torch.float32)


@flash_backward.register_fake
def _(gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    del gradient
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(context: Any, inputs: Any, output: Any) -> None:
    context.save_for_backward(*inputs, *output)


def _backward(context: Any, gradient: torch.Tensor, _: torch.Tensor) -> Any:
    query, key, value, *_others = context.saved_tensors
    return flash_backward(gradient, query, key, value)


flash.register_autograd(_backward, setup_context=_keep)


def _stand_in(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_options: Any
) -> torch.Tensor:
    output: torch.Tensor = flash(query, key, value)[0]
    return output


class AliveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors made in the block that are alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        inputs = {
            t.untyped_storage()._cdata
            for t in tree_leaves((arguments, options))
            if isinstance(t, torch.Tensor)
        }
        found = function(*arguments, **(options or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage(), inputs)
        return found

    def _note(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        name, size = storage._cdata, storage.nbytes()
        if name in self._known or name in inputs:
            return
        self._known.add(name)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, name, size)

    def _forget(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.now -= size


def model_of(preset: str) -> LanguageModel:
    """The preset in bfloat16 on the meta device, in training."""
    with torch.device("meta"):
        network = build_network(preset_config(preset))
    return LanguageModel(network.to(torch.bfloat16), LENGTH).train()


def plain_peak(model: LanguageModel) -> int:
    """Bytes beyond the weights at the peak of one sequence's forward and backward pass, uncompiled."""
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    with patch.object(attention, "scaled_dot_product_attention", _stand_in), AliveBytes() as alive:
        loss, _ = model.summed_loss(tokens, tokens, 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    return alive.peak - gradients


def kept_by_compiled_body(model: LanguageModel) -> int:
    """Bytes that the compiled body keeps of one sequence for its backward pass."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    kept: list[int] = []

    def count(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        given = {node for node in graph.graph.nodes if node.op == "placeholder"}
        (outputs,) = graph.graph.output_node().args
        new = {n for n in outputs if isinstance(n, torch.fx.Node) and n not in given}
        values = [n.meta["val"] for n in new]
        sizes = [v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor)]
        kept.append(sum(sizes))
        return graph.forward

    backend = aot_autograd(
        fw_compiler=count,
        bw_compiler=lambda graph, _: graph.forward,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    with patch.object(attention, "scaled_dot_product_attention", _stand_in):
        torch.compile(model.body, backend=backend, fullgraph=True, dynamic=False)(
            tokens, use_cache=False
        )
    torch._dynamo.reset()
    (found,) = kept
    return found


def bytes_per_logit(tokens: int = 96, vocabulary: int = 1_234, width: int = 16) -> int:
    """Buffers of the logits' size in the code that the compiler writes for a chunk of the loss."""
    from torch._inductor.utils import run_and_get_code

    hidden = torch.randn(tokens, width, dtype=torch.bfloat16)
    weight = torch.randn(vocabulary, width, dtype=torch.bfloat16)
    targets = torch.randint(vocabulary, (tokens,))
    torch._dynamo.reset()
    compiled = torch.compile(fused_chunk_step, dynamic=False)
    _, sources = run_and_get_code(compiled, hidden, weight, targets, 1.0, 0.0)
    torch._dynamo.reset()
    pattern = rf"empty_strided_\w+\(\({tokens}, {vocabulary}\), [^)]*\), torch\.(\w+)\)"
    types = re.findall(pattern, "".join(sources))
    return sum(getattr(torch, kind).itemsize for kind in types)


def print_table() -> None:
    """One Markdown table of what is counted, and one of what fits."""
    print(f"Bytes per logit of the compiled loss: {bytes_per_logit()}")
    shares = ", ".join(f"{n}: {state_bytes('bf16', n):.1f}" for n in PROCESSES)
    print(f"Bytes per parameter and GPU in bf16, by number of GPUs: {shares}\n")
    print(
        "| preset | activations of a sequence, planned | kept by the compiled body | peak of a plain run | "
        "planned, recomputed |\n| --- | ---: | ---: | ---: | ---: |"
    )
    for preset in PRESETS:
        model = model_of(preset)
        needed = footprint(model.network, "bf16")
        planned, recomputed = (
            needed.of_sequences(1, LENGTH, recompute=recompute) for recompute in (False, True)
        )
        counts = (planned, kept_by_compiled_body(model), plain_peak(model), recomputed)
        print(f"| `{preset}` | " + " | ".join(_gib(count) for count in counts) + " |")
    print_fits()


def print_fits() -> None:
    """How many sequences of LENGTH each preset trains at once, on which device, on how many of them."""
    print("\n| preset | GPUs | state | logits | " + " | ".join(DEVICES) + " |")
    print("| --- | ---: | ---: | ---: | " + " | ".join("---:" for _ in DEVICES) + " |")
    for preset in PRESETS:
        with torch.device("meta"):
            network = build_network(preset_config(preset))
        for count in PROCESSES:
            needed = footprint(network, "bf16", count)
            cells = [_fit(needed, memory) for memory in DEVICES.values()]
            sizes = f"{_gib(needed.state)} | {_gib(needed.head)}"
            print(f"| `{preset}` | {count} | {sizes} | " + " | ".join(cells) + " |")


def _fit(needed: Footprint, memory: int) -> str:
    found = fit(needed, LENGTH, memory)
    words = in_words(found, share=2**30)
    return words if found is None else f"{words} ({_gib(total_bytes(needed, found, LENGTH))})"


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
