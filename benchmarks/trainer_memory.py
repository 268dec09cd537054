"""What each proxy takes of a GPU's memory, counted without a GPU: `make bench-trainer ARGS=--dry`.

Every shape of the GPU benchmarks goes through the trainer's own model and loss on the meta device, forward
and backward, at every micro-batch that is planned for it: shapes that do not fit together fail here, and
so do sizes that the fast kernels refuse. Two counts of one sequence's activations stand beside the plan's own
(isoloss_contract.footprint): of the compiled body, what the compiler's partitioner keeps for the backward
pass; and of a plain run, the peak of all tensors alive. Attention is a stand-in that keeps what flash
attention keeps. Bytes per logit are read off the code that the compiler writes for this machine's CPU,
bytes per parameter off the tensors of a learner. The tables become docs/reference/memory.md.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import isoloss_trainer.attention as attention
from benchmarks.trainer_rivals import point_of
from isoloss_contract.footprint import Footprint, sequences_beside_state
from isoloss_contract.memory import DEVICES, GRADIENT_BYTES, STATE_BYTES, USABLE_SHARE
from isoloss_operator.planning.presets import PRESETS, preset_config
from isoloss_trainer.learner import Learner
from isoloss_trainer.loss import chunk_tokens, fused_chunk_step
from isoloss_trainer.memory import footprint, host_footprint
from isoloss_trainer.model import LanguageModel, build_network
from isoloss_trainer.world import World

PAGE = Path(__file__).parents[1] / "docs/reference/memory.md"
LENGTH = 8192
GPU_PRESETS = tuple(name for name, preset in PRESETS.items() if preset.vocabulary is not None)
"""Those with a vocabulary of their own; the others are for a CPU."""
GPUS = (1, 8)
BOUNDARY_BYTES = 16
"""Rows of operands of tensor cores and grouped matrix products begin at multiples of this."""
LARGEST_HEAD = 256
"""Of flash attention."""
LARGEST_INDEX = 2**31
"""Kernels that index with 32 bits take smaller tensors only."""
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
}
LIKES: dict[str, dict[str, Any]] = {
    "8B": {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "70B": {
        **LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}
"""In the shapes of Llama 3."""
GPUS_OF_LIKES = (8, 32, 64)

TEXT = """# Memory

<!-- Written by `make bench-trainer ARGS=--dry`. -->

What training takes of a GPU, computed from the models' configs by `isoloss_contract/footprint.py` without one.
`isoloss-trainer plan --task task.json` prints it for any task. All in bf16, at sequence length 8192. `make bench-trainer
ARGS=--dry` writes this page after checking it against what the compiler keeps (torch {version}), and after a training step
of every preset on the meta device. On one H200 the presets took 2 to 7% less ([measured](../evidence/gpu.md)).

| | memory |
| --- | --- |
| state | {state} bytes per parameter ({parameter} measured), divided among the GPUs: float32 weights, their average, both moments, gradients |
| whole | not divided: weights outside the layers, and of two layers, in the compute type, with their gradients |
| logits | {logit} bytes per logit of one chunk of at most 8,192 tokens, and the gradients of the output matrix |

Activations of one sequence, as planned, as torch's compiler keeps them (without the head), and at the peak of an uncompiled run:

| preset | planned | compiled | uncompiled | planned, layers recomputed |
| --- | ---: | ---: | ---: | ---: |
{activations}

## Which preset fits which GPU

Sequences at once on each GPU (at most 131,072 tokens), and the memory in use then, of 79 GiB on a GPU of 80 GB and 139 GiB on
one of 141 GB, of which {share} are used for planning. "Recomputed": layers are computed again in the backward pass, a third
more work, which the trainer does only if no sequence would fit otherwise. "Host": the peak of a node with up to 8 of the
GPUs while the model is built, and in training with a pinned copy of the state; 3 GiB per process for torch and the driver are
an estimate. The last two are continued from a checkpoint.

{fits}

The first steps find out what really fits: out of memory halves the number of sequences, at last recomputes layers, and all
processes start over.
"""


@torch.library.custom_op("isoloss_dry::flash", mutates_args=())
def flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flash attention's output and log-sum-exp; shapes only."""
    raise NotImplementedError


@torch.library.custom_op("isoloss_dry::flash_backward", mutates_args=())
def flash_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sum_exp: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of its operands; shapes only."""
    raise NotImplementedError


@flash.register_fake
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    del key, value
    return torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=torch.float32)


@flash_backward.register_fake
def _(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sum_exp: torch.Tensor,
) -> Any:
    del gradient, output, log_sum_exp
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(context: Any, gradient: torch.Tensor, _: torch.Tensor) -> Any:
    # All of them, as flash attention's own: what no one reads the compiler would not keep.
    return flash_backward(gradient, *context.saved_tensors)


flash.register_autograd(_backward, setup_context=_keep)


def _stand_in(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_options: Any
) -> torch.Tensor:
    output: torch.Tensor = flash(query, key, value)[0]
    return output


class AliveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors made in the block that are alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.largest = 0
        """Elements of the largest tensor."""
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
                self.largest = max(self.largest, tensor.numel())
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

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self


@contextmanager
def _shapes_only() -> Iterator[None]:
    """What asks for values is left out: attention."""
    with patch.object(attention, "scaled_dot_product_attention", _stand_in):
        yield


def model_of(preset: str, *, recompute: bool = False) -> LanguageModel:
    """The preset in bfloat16 on the meta device, in training."""
    with torch.device("meta"):
        network = build_network(preset_config(preset))
    model = LanguageModel(network.to(torch.bfloat16), LENGTH).train()
    if recompute:
        model.prepare_layers(recompute=True, compiled=False)
    return model


def run_plainly(model: LanguageModel, sequences: int = 1) -> AliveBytes:
    """What is alive in a forward and backward pass of `sequences` on the meta device, uncompiled."""
    tokens = torch.zeros(sequences, LENGTH, dtype=torch.long, device="meta")
    with _shapes_only(), AliveBytes() as alive:
        loss, _ = model.summed_loss(tokens, tokens, 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape
        parameter.grad = None
    return alive


def plain_peak(model: LanguageModel) -> int:
    """Bytes beyond weights and their gradients at the peak of one sequence's forward and backward pass,
    uncompiled."""
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    return run_plainly(model).peak - gradients


def planned_micro_batches(preset: str) -> dict[bool, list[int]]:
    """Sequences at once that some device would be given, ascending, by whether layers are recomputed."""
    network = model_of(preset).network
    found: dict[bool, set[int]] = {False: set(), True: set()}
    for count in GPUS:
        needed = footprint(network, "bf16", count)
        for memory in DEVICES.values():
            for recompute, sizes in found.items():
                sizes.add(sequences_on(needed, memory, recompute=recompute))
    return {recompute: sorted(sizes - {0}) for recompute, sizes in found.items()}


def sequences_on(needed: Footprint, memory: int, *, recompute: bool) -> int:
    """At once on a device of `memory` bytes; 0 where not even one fits."""
    free = int(USABLE_SHARE * memory) - needed.state
    return sequences_beside_state(needed, LENGTH, free, recompute=recompute)


def misfits(network: Any) -> list[str]:
    """What the fast kernels would refuse of a transformers model in bfloat16, in words; empty: nothing."""
    found = []
    for name, parameter in network.named_parameters():
        rows = [size for size in parameter.shape[-2:] if 2 * size % BOUNDARY_BYTES]
        if parameter.dim() >= 2 and rows:
            found.append(f"{name}: {rows[0]} is no multiple of {BOUNDARY_BYTES // 2}")
    config = network.config
    size, _ = attention.head_sizes(config)
    if size % 8 or size > LARGEST_HEAD:
        found.append(f"a head of {size} is no multiple of 8 up to {LARGEST_HEAD}")
    if config.num_attention_heads % config.num_key_value_heads:
        found.append("key-value heads do not divide the heads")
    logits = chunk_tokens(config.vocab_size, torch.device("cuda")) * config.vocab_size
    if logits >= LARGEST_INDEX:
        found.append(f"a chunk of {logits:,} logits")
    return found


def check_shapes(preset: str) -> dict[bool, list[int]]:
    """Train one step of every planned micro-batch on the meta device; returns them. Raises ValueError
    where the fast kernels would refuse something."""
    planned = planned_micro_batches(preset)
    for recompute, sizes in planned.items():
        model = model_of(preset, recompute=recompute)
        refused = misfits(model.network)
        for size in sizes:
            largest = run_plainly(model, size).largest
            if largest >= LARGEST_INDEX:
                refused.append(f"{size} at once: a tensor of {largest:,} elements")
        if refused:
            raise ValueError(f"{preset}: {'; '.join(refused)}")
    return planned


def kept_by_compiled_layers(model: LanguageModel) -> int:
    """Bytes that the compiled layers keep of one sequence for its backward pass."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    kept: list[int] = []

    def count(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        given = {node for node in graph.graph.nodes if node.op == "placeholder"}
        outputs = graph.graph.output_node().all_input_nodes
        new = [node for node in outputs if node not in given]
        values = [n.meta["val"] for n in new]
        size = sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))

        def compute(*inputs: Any) -> Any:
            kept.append(size)
            return graph.forward(*inputs)

        return compute

    backend = aot_autograd(
        fw_compiler=count,
        bw_compiler=lambda graph, _: graph.forward,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    with _shapes_only():
        model.prepare_layers(recompute=False, compiled=True, backend=backend)
        model.hidden(tokens)
    model.prepare_layers(recompute=False, compiled=False)
    torch._dynamo.reset()
    assert len(kept) == len(model.layers)
    return sum(kept)


def bytes_per_logit(tokens: int = 96, vocabulary: int = 1_234, width: int = 16) -> int:
    """Buffers of the logits' size in the code that the compiler writes for a chunk of the loss."""
    from torch._inductor.utils import run_and_get_code

    hidden = torch.randn(tokens, width, dtype=torch.bfloat16)
    weight = torch.randn(vocabulary, width, dtype=torch.bfloat16)
    targets = torch.randint(vocabulary, (tokens,))
    torch._dynamo.reset()
    compiled = torch.compile(fused_chunk_step, dynamic=False)
    _, sources = run_and_get_code(compiled, hidden, weight, targets, torch.ones(()), 0.0)
    torch._dynamo.reset()
    pattern = rf"empty_strided_\w+\(\({tokens}, {vocabulary}\), [^)]*\), torch\.(\w+)\)"
    types = re.findall(pattern, "".join(sources))
    return sum(getattr(torch, kind).itemsize for kind in types)


def bytes_per_parameter() -> float:
    """That a learner in bfloat16 on one device holds after a step, per parameter of its model."""
    config, length = preset_config("dense-small"), 64
    learner = Learner(build_network(config, seed=0), point_of(config, 1, length, "bf16"), World())
    learner.step(torch.zeros(1, length + 1, dtype=torch.long), length)
    parameters = list(learner.model.parameters())
    held = [*learner.tensors().values(), *(p.grad for p in parameters if p.grad is not None)]
    return sum(t.numel() * t.element_size() for t in held) / sum(p.numel() for p in parameters)


def write_page() -> None:
    """Count everything and write docs/reference/memory.md; the tables go to the standard output, too."""
    text = page()
    PAGE.write_text(text)
    print(text)
    print(f"Written: {PAGE}", file=sys.stderr)


def page() -> str:
    """The whole page."""
    activations = []
    for preset in GPU_PRESETS:
        print(f"  … {preset}: shapes", file=sys.stderr, flush=True)
        check_shapes(preset)
        print(f"  … {preset}: activations", file=sys.stderr, flush=True)
        activations.append(_activations(preset))
    print("  … bytes per logit and per parameter", file=sys.stderr, flush=True)
    return TEXT.format(
        version=torch.__version__.partition("+")[0],
        state=STATE_BYTES + GRADIENT_BYTES,
        parameter=_number(bytes_per_parameter()),
        logit=bytes_per_logit(),
        share=f"{USABLE_SHARE:.0%}",
        activations="\n".join(activations),
        fits=fits_table(),
    )


def _activations(preset: str) -> str:
    model = model_of(preset)
    needed = footprint(model.network, "bf16")
    planned, recomputed = (
        needed.of_sequences(1, LENGTH, recompute=recompute) for recompute in (False, True)
    )
    counts = (planned, kept_by_compiled_layers(model), plain_peak(model), recomputed)
    return f"| `{preset}` | " + " | ".join(_gib(count) for count in counts) + " |"


def fits_table() -> str:
    """Which preset trains on which device, on how many of them, with how many sequences at once."""
    columns = [f"{name}{words}" for name in DEVICES for words in ("", ", recomputed")]
    heads = [
        "preset",
        "GPUs",
        "state",
        "whole",
        "logits",
        *columns,
        "host, building",
        "host, training",
    ]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for preset in GPU_PRESETS:
        network = model_of(preset).network
        lines += [_fit_of(f"`{preset}`", network, count, "random") for count in GPUS]
    for name, config in LIKES.items():
        with torch.device("meta"):
            network = build_network(config)
        lines += [_fit_of(name, network, count, "bf16") for count in GPUS_OF_LIKES]
    return "\n".join(lines)


def _fit_of(name: str, network: Any, count: int, given: Literal["random", "bf16"]) -> str:
    needed, host = footprint(network, "bf16", count), host_footprint(network, count, given)
    parts = [_gib(size) for size in (needed.state, needed.whole, needed.head)]
    hosts = [_gib(host.build), _gib(host.train)]
    return "| " + " | ".join([name, str(count), *parts, *_fits(needed), *hosts]) + " |"


def _fits(needed: Footprint) -> Iterator[str]:
    for memory in DEVICES.values():
        for recompute in (False, True):
            size = sequences_on(needed, memory, recompute=recompute)
            activations = needed.of_sequences(size, LENGTH, recompute=recompute)
            total = needed.fixed + activations
            yield f"{size} ({_gib(total)})" if size else "does not fit"


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
