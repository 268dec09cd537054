"""Causal attention without a mask, for transformers models.

Under torch.compile, transformers builds a dense [1, 1, S, S] mask for `sdpa` even for plain causal
attention, which rules out the fast kernels and doubles the work. An attention registered under its
own name gets `is_causal=True` and no mask.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

from isoloss_contract.records import AttentionShape

NAME = "isoloss_causal"
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
    }
)
"""Model types known to be plainly causal unless they set a sliding window; others keep `sdpa`."""


def register() -> None:
    """Register the attention with transformers, which makes no mask for one that has no mask function of its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, causal_attention)


def attention_shape(config: Any) -> AttentionShape | None:
    """What the scores of a transformers config cost; None for a family or a mixture of layers not known here.

    Counted from the configuration that transformers completed; the operator counts the same from the one
    that it was given.
    """
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    windowed = config.model_type in ("mistral", "mixtral")
    if config.model_type not in FAMILIES or (kinds != {"full_attention"} and not windowed):
        return None
    heads = config.num_attention_heads
    query, value = head_sizes(config)
    return AttentionShape(
        layers=config.num_hidden_layers,
        query_width=heads * query,
        value_width=heads * value,
        window=getattr(config, "sliding_window", None) if windowed else None,
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
