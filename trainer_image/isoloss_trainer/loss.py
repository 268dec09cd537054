"""Cross entropy of a large output head in bounded memory.

With a vocabulary of 131,072, the logits and their float32 copy take 0.75 MB per token. Here a chunk
of tokens at a time goes through the head: logits, float32 losses and, when training, the gradients at
once, so that nothing of the size of the logits outlives its chunk.

Logits are float32 also if hidden states and head are bfloat16. Rounded to bfloat16, logits around 30
are off by up to 0.06, and losses by 0.002 nats; how far logits drift depends on the learning rate.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from isoloss_contract.footprint import CHUNK_BYTES, tokens_of_chunk

CPU_CHUNK_BYTES = 2**26
"""Size of one chunk's float32 logits on a CPU."""

ChunkStep = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]


def chunk_tokens(vocabulary: int, device: torch.device) -> int:
    """Tokens per chunk: a power of two whose float32 logits take CHUNK_BYTES or CPU_CHUNK_BYTES at most."""
    return tokens_of_chunk(vocabulary, CPU_CHUNK_BYTES if device.type == "cpu" else CHUNK_BYTES)


def summed_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    scale: float,
    chunk: int,
    z_loss: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`scale` times the summed loss in nats of `hidden` [tokens, width] against `targets` [tokens],
    and `scale` times the summed offset, the log of the softmax's denominator; float32 scalars.

    The gradients are computed in the forward pass. They, and not the loss, include `z_loss` times the
    square of each token's offset (Chowdhery et al. 2204.02311, section 5), which keeps logits small.
    """
    answer: tuple[torch.Tensor, torch.Tensor] = _ChunkedCrossEntropy.apply(
        hidden, weight, targets, scale, chunk, z_loss
    )
    return answer


def token_losses(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunk: int
) -> torch.Tensor:
    """Loss in nats of every token, float32 [tokens], without gradients."""
    losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
    step = _compiled(_chunk_losses) if hidden.is_cuda else _chunk_losses
    with torch.no_grad():
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            losses[part] = step(hidden[part], weight, targets[part])
    return losses


def float32_logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The product [tokens, vocabulary] of `hidden` [tokens, width] and `weight` [vocabulary, width],
    summed and kept in float32."""
    if hidden.dtype not in (torch.bfloat16, torch.float16):
        return hidden @ weight.T
    if hidden.device.type == "cpu":  # which has no product of bfloat16 into float32
        return hidden.float() @ weight.float().T
    return torch.mm(hidden, weight.T, out_dtype=torch.float32)


def _chunk_losses(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    logits = float32_logits(hidden, weight)
    return (_offsets(logits) - logits.gather(-1, targets[:, None])).squeeze(-1)


def _offsets(logits: torch.Tensor) -> torch.Tensor:
    """Log of the softmax's denominator of each row [tokens, 1]. Written so that the compiler reads the logits once for
    both reductions (its online softmax); of logsumexp it makes one loop for each."""
    largest = logits.amax(-1, keepdim=True)
    return largest + (logits - largest).exp().sum(-1, keepdim=True).log()


def chunk_step(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, scale: float, z_loss: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scaled loss and offset of one chunk, and its gradients with respect to hidden states and weight."""
    logits = float32_logits(hidden, weight)
    chosen = logits.gather(-1, targets[:, None])
    torch.log_softmax(logits, dim=-1, out=logits)  # in place: a single float32 buffer
    logarithms = logits.gather(-1, targets[:, None])
    offsets = chosen - logarithms
    gradient = logits.exp_()
    if z_loss:
        gradient.mul_(1 + 2 * z_loss * offsets)
    gradient.scatter_add_(-1, targets[:, None], gradient.new_full((len(targets), 1), -1.0))
    gradient = gradient.to(hidden.dtype)
    return (
        logarithms.sum() * -scale,
        offsets.sum() * scale,
        *_products(gradient, hidden, weight, scale),
    )


def fused_chunk_step(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    scale: torch.Tensor,
    z_loss: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `chunk_step`, for the compiler: element by element from the logits to their gradient, so that
    between the two products nothing of their size is written but the gradient in `hidden`'s type. `scale` is a
    tensor, because the compiler takes a number for a constant: it would compile anew for every batch size."""
    logits = float32_logits(hidden, weight)
    chosen = logits.gather(-1, targets[:, None])
    offsets = _offsets(logits)
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    gradient = (logits - offsets).exp() * (1 + 2 * z_loss * offsets) - is_target.float()
    gradient = gradient.to(hidden.dtype)
    return (
        (offsets - chosen).sum() * scale,
        offsets.sum() * scale,
        *_products(gradient, hidden, weight, scale),
    )


def _products(
    gradient: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    scale: float | torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    # Scaling the narrow factors is cheaper than another pass over the logits.
    return (gradient @ weight).mul_(scale), gradient.T @ (hidden * scale)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled, because that fuses the passes over the logits."""
    return torch.compile(function, dynamic=False)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        scale: float,
        chunk: int,
        z_loss: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        offset = torch.zeros_like(total)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient: torch.Tensor | None = None
        step: ChunkStep = chunk_step
        factor: float | torch.Tensor = scale
        if hidden.is_cuda:
            step = _compiled(fused_chunk_step)
            factor = torch.full((), scale, dtype=torch.float32, device=hidden.device)
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            loss, offsets, hidden_gradient[part], addend = step(
                hidden[part], weight, targets[part], factor, z_loss
            )
            total += loss
            offset += offsets
            # In float32: a bfloat16 sum of many small terms would lose them.
            if weight_gradient is None:
                weight_gradient = addend.float()
            else:
                weight_gradient += addend
        assert weight_gradient is not None, "a loss of no tokens"
        context.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        context.mark_non_differentiable(offset)
        return total, offset

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        hidden_gradient, weight_gradient = context.saved_tensors
        factor = gradients[0]
        # In place: nothing else uses them, and the weight may be the largest tensor of the model.
        return (
            hidden_gradient.mul_(factor),
            weight_gradient.mul_(factor),
            None,
            None,
            None,
            None,
        )
