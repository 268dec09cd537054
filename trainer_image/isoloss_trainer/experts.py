"""Experts of a mixture as grouped products, for transformers models.

Copying each token's state to the experts that it goes to, and summing what they return, are each other's
transposes: with the order of the experts and its inverse at hand both are gathers, forward and backward. Left to
torch, the backward pass of a gather adds up rows by their numbers, which on an accelerator sorts them once more or
takes turns at every element, and gives other bits each time.
"""

from __future__ import annotations

from typing import Any

import torch

NAME = "isoloss_grouped"


FIRST_CAPABILITY = (8, 0)
"""Of NVIDIA GPUs for which torch has grouped products; transformers computes expert by expert on older ones."""


def register() -> None:
    """Register the implementation with transformers."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, grouped_experts)


def are_plain(network: Any) -> bool:
    """Whether a model has experts that `grouped_experts` computes, and no others: two products with a gate between
    them, which transformers would group as well."""
    if getattr(network.config, "_experts_implementation", None) != "grouped_mm":
        return False
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < FIRST_CAPABILITY:
        return False
    found = [module for module in network.modules() if hasattr(module, "is_concatenated")]
    return bool(found) and all(
        module.has_gate
        and not module.has_bias
        and not module.is_transposed
        and not getattr(module, "has_post_expert_norm", False)
        for module in found
    )


def grouped_experts(
    experts: Any, states: torch.Tensor, numbers: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """What experts make of `states` [tokens, width], summed: token t goes to the experts `numbers[t]`, which
    count by `weights[t]`, both [tokens, active]."""
    active = numbers.shape[-1]
    grouped, order = torch.sort(numbers.flatten(), stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    every = torch.arange(experts.num_experts, device=grouped.device, dtype=grouped.dtype)
    ends = torch.searchsorted(grouped, every, right=True, out_int32=True)

    first, second = experts.gate_up_proj, experts.down_proj
    inner = _FirstProduct.apply(states.to(first.dtype), first, order, inverse, ends, active)
    # Not after the second product, which would have to be kept for it, and is wider.
    share = _Permuted.apply(weights.flatten(), order, inverse)
    inner = (experts._apply_gate(inner) * share[:, None]).to(second.dtype)
    found: torch.Tensor = _Summed.apply(_product(inner, second, ends), order, inverse, active)
    return found.to(states.dtype)


def _product(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Of rows [rows, in] that are grouped by expert up to `ends`, with weights [experts, out, in]."""
    return torch.nn.functional.grouped_mm(rows, weights.transpose(-2, -1), offs=ends)


def _sums(rows: torch.Tensor, inverse: torch.Tensor, active: int) -> torch.Tensor:
    """What the rows [tokens x active, width] of each token add up to, in float32: [tokens, width]."""
    if not torch.compiler.is_compiling():
        copies = rows.index_select(0, inverse)
        return copies.view(-1, active, rows.shape[-1]).sum(1)
    # As one loop along the width: the compiler's loop for a sum reads across rows.
    places = inverse.view(-1, active)
    total = rows[places[:, 0]].float()
    for number in range(1, active):
        total = total + rows[places[:, number]].float()
    return total.to(rows.dtype)


class _FirstProduct(torch.autograd.Function):
    """Of copies of the states for each expert, which are made again in the backward pass: they would be the most of
    what is kept for it."""

    @staticmethod
    def forward(
        context: Any,
        states: torch.Tensor,
        weights: torch.Tensor,
        order: torch.Tensor,
        inverse: torch.Tensor,
        ends: torch.Tensor,
        active: int,
    ) -> torch.Tensor:
        source = order // active
        # Narrower than forward's: the compiler takes equal expressions for one, and would keep the copies.
        context.save_for_backward(states, weights, source.to(torch.int32), inverse, ends)
        context.active = active
        return _product(states.index_select(0, source), weights, ends)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, weights, source, inverse, ends = context.saved_tensors
        gradient = gradient.contiguous()
        of_copies = torch.nn.functional.grouped_mm(gradient, weights, offs=ends)
        copies = states.index_select(0, source)
        of_weights = torch.nn.functional.grouped_mm(gradient.t(), copies, offs=ends)
        return _sums(of_copies, inverse, context.active), of_weights, None, None, None, None


class _Summed(torch.autograd.Function):
    """`_sums`, with copies of each token's gradient as backward pass."""

    @staticmethod
    def forward(
        context: Any, rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor, active: int
    ) -> torch.Tensor:
        context.save_for_backward(order)
        context.active = active
        return _sums(rows, inverse, active)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (order,) = context.saved_tensors
        return gradient.index_select(0, order // context.active), None, None, None


class _Permuted(torch.autograd.Function):
    """Values in another order, with the inverse order as backward pass."""

    @staticmethod
    def forward(
        context: Any, values: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor
    ) -> torch.Tensor:
        context.save_for_backward(inverse)
        return values[order]

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (inverse,) = context.saved_tensors
        return gradient[inverse], None, None
