"""Causal attention without a mask, for transformers models, and which kernels compute a model: logged once at the start, because a
slow fallback says nothing; and, if equal bits matter more than speed, only those that give them.

Under torch.compile, transformers builds a dense [1, 1, S, S] mask for `sdpa` even for plain causal
attention, which rules out the fast kernels and doubles the work. An attention registered under its
own name gets `is_causal=True` and no mask.
"""

import functools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from isoloss_contract.footprint import SINK_WIDTH, Precision
from isoloss_contract.records import AttentionShape
from isoloss_trainer.termination import BadConfiguration
from isoloss_trainer.world import World

NAME, WITH_SINKS = "isoloss_causal", "isoloss_sinks"
FAMILIES = frozenset(
    {
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "deepseek_v3",
        "olmo2",
        "smollm3",
        "phi3",
        "glm4",
        "glm4_moe",
        "granite",
        "llama4_text",
    }
)
"""Model types known to be plainly causal unless they set a sliding window; others keep `sdpa`."""


def register() -> None:
    """Register both with transformers, which makes no mask for one that has no mask function of its name."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, causal_attention)
    ALL_ATTENTION_FUNCTIONS.register(WITH_SINKS, attention_with_sinks)
    ALL_MASK_ATTENTION_FUNCTIONS.register(WITH_SINKS, sdpa_mask)


WINDOWED = frozenset({"mistral", "mixtral", "phi3", "qwen3_moe"})
"""Those of which all layers have the window that their config states."""
MIXED = frozenset({"gemma3_text", "gpt_oss"})
"""Others whose layers are counted by their kinds."""


def attention_shapes(config: Any) -> tuple[AttentionShape, ...] | None:
    """What the scores of a transformers config cost, for each kind of layer; None for a family that is not known here.

    Counted from the configuration that transformers completed; the operator counts the same from the one
    that it was given.
    """
    kind, layers = config.model_type, config.num_hidden_layers
    if kind not in FAMILIES | MIXED:
        return None
    window = getattr(config, "sliding_window", None)
    kinds = Counter(getattr(config, "layer_types", None) or {"full_attention": layers})
    if kind in WINDOWED:
        kinds = Counter({"sliding_attention" if window else "full_attention": layers})
    chunk = getattr(config, "attention_chunk_size", None)
    query, value = (config.num_attention_heads * size for size in head_sizes(config))
    windows = {"full_attention": None, "sliding_attention": window, "chunked_attention": chunk}
    return tuple(
        AttentionShape(
            layers=kinds[name],
            query_width=query,
            value_width=value,
            window=size,
            in_chunks=name == "chunked_attention" and size is not None,
        )
        for name, size in windows.items()
        if kinds[name]
    )


def head_sizes(config: Any) -> tuple[int, int]:
    """Widths of a head's queries and values, which are narrower in latent attention (MLA)."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    size = getattr(config, "qk_head_dim", None) or size
    return size, getattr(config, "v_head_dim", None) or size


def is_plainly_causal(config: Any, sequence_length: int) -> bool:
    """Whether every layer attends to all earlier tokens of a sequence of `sequence_length`."""
    if config.model_type not in FAMILIES:
        return False
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"} and _window(config) < sequence_length:
        return False
    return kinds == {"full_attention"} or _window(config) >= sequence_length


def _window(config: Any) -> float:
    if config.model_type == "llama4_text":
        return getattr(config, "attention_chunk_size", None) or float("inf")
    if getattr(config, "use_sliding_window", True) is False:
        return float("inf")
    return getattr(config, "sliding_window", None) or float("inf")


def causal_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of [batch, heads, S, size] tensors; the output is [batch, S, heads, value size]."""
    size = value.shape[-1]
    value = _padded(value, query)
    groups = getattr(module, "num_key_value_groups", 1)
    if query.device.type == "cpu" and groups > 1:
        # The CPU kernel is several times faster on repeated heads than on grouped ones.
        key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
        groups = 1
    output = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=groups > 1
    )
    return output[..., :size].transpose(1, 2).contiguous(), None


def attention_with_sinks(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    s_aux: torch.Tensor,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    """As causal_attention, where a query may also give weight to its head's sink (gpt-oss), a score `s_aux` [heads]
    with a value of zero: one more key, before the others, along a dimension in which queries are 1 and keys are 0.

    No scores are kept, as transformers' own operations do. `attention_mask`: [batch, 1, S, S], or None for all earlier
    tokens.
    """
    size, groups = value.shape[-1], query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    pad = torch.nn.functional.pad
    query = torch.cat([query, pad(torch.ones_like(query[..., :1]), (0, SINK_WIDTH - 1))], -1)
    sink = pad((s_aux.to(key.dtype) / scaling).view(1, -1, 1, 1), (size, SINK_WIDTH - 1))
    key = torch.cat([sink.expand(len(key), -1, -1, -1), pad(key, (0, SINK_WIDTH))], 2)
    value = pad(value, (0, SINK_WIDTH, 1, 0))
    if attention_mask is None:
        # A query before the others, which sees the sink alone, puts them on the diagonal.
        query = pad(query, (0, 0, 1, 0))
        output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        output = output[:, :, 1:]
    else:
        seen = pad(attention_mask, (1, 0), value=True)
        output = scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling)
    return output[..., :size].transpose(1, 2).contiguous(), None


def _padded(value: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Values padded with zeros to the size of the queries if they are narrower (MLA) and the kernel takes them
    so only: the flash kernels of GPU and CPU do, and the fallback materialises the scores."""
    _, heads, length, size = query.shape
    missing = size - value.shape[-1]
    if missing <= 0 or takes_narrow_values(
        query.device, query.dtype, heads, length, size, value.shape[-1]
    ):
        return value
    return torch.nn.functional.pad(value, (0, missing))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def takes_narrow_values(
    device: torch.device, kind: torch.dtype, heads: int, length: int, size: int, value_size: int
) -> bool:
    """Whether torch takes cuDNN's kernel for narrow values, of those that are preferred where this is called: on an
    H200 a layer is computed in 0.7 to 0.8 of the time with them."""
    if device.type == "cpu":
        return False
    preferred = (*torch._C._get_sdp_priority_order(), torch._C._get_cudnn_sdp_enabled())
    return _takes(preferred, device, kind, (1, heads, length, size), value_size)


@functools.cache
def _takes(
    _preferred: Any,
    device: torch.device,
    kind: torch.dtype,
    shape: tuple[int, ...],
    value_size: int,
) -> bool:
    with FakeTensorMode(), torch.enable_grad():  # no memory, and nothing is computed
        query = torch.empty(shape, dtype=kind, device=device, requires_grad=True)
        value = torch.empty((*shape[:-1], value_size), dtype=kind, device=device)
        output = scaled_dot_product_attention(query, query, value, is_causal=True)
    return "Cudnn" in type(output.grad_fn).__name__


# ---------------------------------------------------------------------------------- kernels


ORDER = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
"""Order of kernels, as torch.nn.attention.SDPBackend names them. torch prefers flash, which is about half as fast as
cuDNN on Hopper; `make gpu-check` measures how a device compares."""
DETERMINISTIC = ("FLASH_ATTENTION", "MATH")
"""Those whose backward pass gives equal bits each time, in the same order."""


def computing_type(precision: Precision) -> torch.dtype:
    """The type that a model computes in."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """If `wanted`, torch uses only kernels that give equal bits for equal input on the same device.

    Before the first product of matrices: cuBLAS reads its variable once. Raises BadConfiguration if the
    model needs a kernel that has no such form.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Off: filling new memory catches reads of it before it is written, at the price of writing it twice.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        message = f"the model needs a kernel that is not deterministic: {error}"
        raise BadConfiguration("NotDeterministic", message[:600], "deterministic") from error
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


@contextmanager
def preferred_kernels(
    world: World, precision: Precision = "float32", *, deterministic: bool = False
) -> Iterator[None]:
    """On an accelerator, prefer attention kernels in ORDER; if `deterministic`, only those that give equal bits.

    What trains in bfloat16 rounds the operands of its few products in float32, those of routers, to
    TensorFloat-32: their states and weights are bfloat16 numbers, which that leaves as they are.
    """
    if world.on_cpu:
        yield
        return
    names = DETERMINISTIC if deterministic else ORDER
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "bf16" else before)
    try:
        with sdpa_kernel([getattr(SDPBackend, name) for name in names], set_priority=True):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def describe_kernels(network: Any, sequence_length: int, kind: torch.dtype) -> dict[str, str]:
    """The implementations in use, as transformers calls them, and the kernel behind attention, as torch does.

    `kind` is the type that computes; weights may be kept in another. `attention_kernel` is what torch chooses for
    one sequence of the model's shape, among those that are preferred where this is called. `attention_values`, if
    they are narrower than queries, are "narrow" or "padded" to their size.
    """
    config, device = network.config, network.get_output_embeddings().weight.device
    heads = config.num_attention_heads
    size, value_size = head_sizes(config)
    query = torch.empty(1, heads, sequence_length, size, dtype=kind, device=device)
    query.requires_grad_()
    choice: int = torch._fused_sdp_choice(query, query, query, is_causal=True)
    found = {
        "attention": str(config._attn_implementation),
        "attention_kernel": SDPBackend(choice).name,
    }
    if value_size < size:
        narrow = takes_narrow_values(device, kind, heads, sequence_length, size, value_size)
        found["attention_values"] = "narrow" if narrow else "padded"
    if any(".experts." in name for name, _ in network.named_parameters()):
        found["experts"] = str(config._experts_implementation)
    return found
