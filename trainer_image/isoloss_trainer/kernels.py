"""Which kernels compute a model: logged once at the start, because a slow fallback says nothing; and,
if equal bits matter more than speed, only those that give them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.nn.attention import SDPBackend

from isoloss_trainer.termination import BadConfiguration


def computing_type(precision: Literal["bf16", "float32"]) -> torch.dtype:
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


def describe_kernels(
    network: Any, sequence_length: int, kind: torch.dtype, *, compiled: bool
) -> dict[str, str]:
    """transformers' names of the implementations in use, and torch's of the kernels behind them.

    `kind` is the type that computes; weights may be kept in another. `attention_kernel` is what torch chooses for
    one sequence of the model's shape, among those that are preferred where this is called;
    `experts_kernel` is "native" for torch's grouped GEMM, else "fallback": a loop over the experts.
    """
    found = {
        "attention": str(network.config._attn_implementation),
        "attention_kernel": _attention_kernel(network, sequence_length, kind),
    }
    experts = [p for name, p in network.named_parameters() if ".experts." in name and p.dim() == 3]
    if experts:
        found["experts"] = str(network.config._experts_implementation)
        found["experts_kernel"] = _experts_kernel(experts[0].device, kind, compiled=compiled)
    return found


def _attention_kernel(network: Any, sequence_length: int, kind: torch.dtype) -> str:
    """Values narrower than the queries are padded to their size."""
    config, device = network.config, network.get_output_embeddings().weight.device
    size = getattr(config, "qk_head_dim", None) or getattr(config, "head_dim", None)
    size = size or config.hidden_size // config.num_attention_heads
    shape = (1, config.num_attention_heads, sequence_length, size)
    query = torch.empty(shape, dtype=kind, device=device, requires_grad=True)
    choice: int = torch._fused_sdp_choice(query, query, query, is_causal=True)
    return SDPBackend(choice).name


def _experts_kernel(device: torch.device, kind: torch.dtype, *, compiled: bool) -> str:
    from transformers.integrations.moe import _can_use_grouped_mm

    weight = torch.empty(1, 8, 8, dtype=kind, device=device)
    usable = _can_use_grouped_mm(weight[0], weight, torch.empty(0, device=device))
    # Under the compiler, transformers uses it for bfloat16 weights only.
    return "native" if usable and (kind == torch.bfloat16 or not compiled) else "fallback"
