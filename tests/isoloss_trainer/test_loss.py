"""The chunked loss is cross entropy: its value, its gradients, at any chunk size."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from isoloss_trainer.loss import chunk_tokens, summed_loss, token_losses

TOKENS, WIDTH, VOCABULARY = 37, 16, 101


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, dtype=dtype)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=dtype)
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


@pytest.mark.parametrize("chunk", [1, 8, 37, 1000])
def test_value_and_gradients_equal_autograds(chunk: int) -> None:
    hidden, weight, targets = inputs()
    expected = cross_entropy(hidden @ weight.T, targets, reduction="sum") * 0.25
    wanted = torch.autograd.grad(expected, [hidden, weight])
    loss = summed_loss(hidden, weight, targets, 0.25, chunk)
    found = torch.autograd.grad(loss * 3, [hidden, weight])
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs * 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 8, 1000])
def test_token_losses_are_float32_whatever_the_input(chunk: int) -> None:
    hidden, weight, targets = inputs(torch.bfloat16)
    losses = token_losses(hidden, weight, targets, chunk)
    wanted = cross_entropy((hidden @ weight.T).float(), targets, reduction="none")
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, wanted)


def test_bfloat16_weight_gradients_add_up_in_float32() -> None:
    hidden, weight, targets = inputs(torch.bfloat16)
    exact = weight.detach().float().requires_grad_()
    logits = hidden.detach().float() @ exact.T
    (wanted,) = torch.autograd.grad(cross_entropy(logits, targets, reduction="sum"), [exact])
    (found,) = torch.autograd.grad(summed_loss(hidden, weight, targets, 1.0, 1), [weight])
    error = (found.float() - wanted).norm() / wanted.norm()
    assert found.dtype == torch.bfloat16
    assert error < 0.01


def test_extreme_logits_stay_finite() -> None:
    hidden, weight, targets = inputs(torch.float32)
    loss = summed_loss(hidden * 1e4, weight, targets, 1.0, 8)
    (gradient,) = torch.autograd.grad(loss, [weight])
    assert loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("vocabulary", [256, 1024, 131_072])
def test_a_chunk_of_logits_fits_its_budget(vocabulary: int) -> None:
    chunk = chunk_tokens(vocabulary, torch.device("cpu"))
    assert chunk & (chunk - 1) == 0
    assert chunk == 128 or chunk * vocabulary * 4 <= 2**26
