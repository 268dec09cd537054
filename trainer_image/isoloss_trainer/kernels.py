"""Which kernels compute a model: logged once at the start, because a slow fallback says nothing; and,
if equal bits matter more than speed, only those that give them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from isoloss_contract.footprint import Precision
from isoloss_trainer.attention import head_sizes, takes_narrow_values
from isoloss_trainer.termination import BadConfiguration
from isoloss_trainer.world import World

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
