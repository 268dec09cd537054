"""Cross entropy of a large output head in bounded memory.

With a vocabulary of 131,072, the logits and their float32 copy take 0.75 MB per token. Here a chunk
of tokens at a time goes through the head: logits, float32 losses and, when training, the gradients at
once, so that nothing of the size of the logits outlives its chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

CHUNK_BYTES = 2**32
"""Of one chunk's float32 logits on an accelerator."""
CPU_CHUNK_BYTES = 2**26


def chunk_tokens(vocabulary: int, device: torch.device) -> int:
    """Tokens per chunk: a power of two whose float32 logits take CHUNK_BYTES or CPU_CHUNK_BYTES at most."""
    budget = CPU_CHUNK_BYTES if device.type == "cpu" else CHUNK_BYTES
    return 1 << max(7, (budget // (4 * vocabulary)).bit_length() - 1)


def summed_loss(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, scale: float, chunk: int
) -> torch.Tensor:
    """`scale` times the summed loss in nats of `hidden` [tokens, width] against `targets` [tokens].

    A float32 scalar. The gradients are computed in the forward pass.
    """
    answer: torch.Tensor = _ChunkedCrossEntropy.apply(hidden, weight, targets, scale, chunk)
    return answer


def token_losses(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunk: int
) -> torch.Tensor:
    """Loss in nats of every token, float32 [tokens], without gradients."""
    losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
    with torch.no_grad():
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            losses[part] = _losses((hidden[part] @ weight.T).float(), targets[part])
    return losses


def _losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return logits.logsumexp(-1) - logits.gather(-1, targets[:, None]).squeeze(-1)


def _chunk_step(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scaled loss of one chunk, and its gradients with respect to the hidden states and the weight."""
    logarithms = (hidden @ weight.T).float()
    torch.log_softmax(logarithms, dim=-1, out=logarithms)  # in place: a single float32 buffer
    loss = logarithms.gather(-1, targets[:, None]).sum() * -scale
    gradient = logarithms.exp_()
    gradient.scatter_add_(-1, targets[:, None], gradient.new_full((len(targets), 1), -1.0))
    gradient = gradient.to(hidden.dtype)
    # Scaling the narrow factors is cheaper than another pass over the logits.
    return loss, (gradient @ weight).mul_(scale), gradient.T @ (hidden * scale)


@functools.cache
def _compiled_chunk_step() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Compiled, because that fuses the passes over the logits."""
    return torch.compile(_chunk_step, dynamic=False)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        scale: float,
        chunk: int,
    ) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient: torch.Tensor | None = None
        step = _compiled_chunk_step() if hidden.is_cuda else _chunk_step
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            loss, hidden_gradient[part], addend = step(hidden[part], weight, targets[part], scale)
            total += loss
            # In float32: a bfloat16 sum of many small terms would lose them.
            if weight_gradient is None:
                weight_gradient = addend.float()
            else:
                weight_gradient += addend
        assert weight_gradient is not None, "a loss of no tokens"
        context.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return total

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        hidden_gradient, weight_gradient = context.saved_tensors
        (factor,) = gradients
        # In place: nothing else uses them, and the weight may be the largest tensor of the model.
        return hidden_gradient.mul_(factor), weight_gradient.mul_(factor), None, None, None
