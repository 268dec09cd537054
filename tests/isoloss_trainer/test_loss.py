"""The chunked loss is cross entropy: its value, its gradients, at any chunk size and any precision."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from isoloss_trainer.loss import (
    chunk_step,
    chunk_tokens,
    fused_chunk_step,
    summed_loss,
    token_losses,
)

TOKENS, WIDTH, VOCABULARY = 37, 16, 101


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, dtype=dtype)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=dtype)
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("chunk", [1, 8, 37, 1000])
def test_value_and_gradients_equal_autograds(chunk: int, z_loss: float) -> None:
    """The loss without the penalty of large offsets, the gradients with it."""
    hidden, weight, targets = inputs()
    logits = hidden @ weight.T
    expected = cross_entropy(logits, targets, reduction="sum") * 0.25
    offsets = logits.logsumexp(-1)
    wanted = torch.autograd.grad(expected + 0.25 * z_loss * (offsets**2).sum(), [hidden, weight])
    loss, offset = summed_loss(hidden, weight, targets, 0.25, chunk, z_loss)
    found = torch.autograd.grad(loss * 3, [hidden, weight])
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(offset.double(), offsets.sum() * 0.25, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs * 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_steps_for_the_compiler_and_without_it_agree(
    dtype: torch.dtype, z_loss: float
) -> None:
    hidden, weight, targets = inputs(dtype)
    with torch.no_grad():
        plain = chunk_step(hidden, weight, targets, 0.25, z_loss)
        fused = fused_chunk_step(hidden, weight, targets, 0.25, z_loss)
    for one, other in zip(plain, fused, strict=True):
        error = (one - other).float().norm() / one.float().norm()
        assert error < (1e-6 if dtype is torch.float32 else 5e-3)


@pytest.mark.parametrize("chunk", [1, 8, 1000])
def test_losses_of_bfloat16_states_are_those_of_unrounded_logits(chunk: int) -> None:
    """Also where all logits share a large offset: rounded to bfloat16 they would be off by 0.06."""
    hidden, weight, targets = inputs(torch.bfloat16)
    with torch.no_grad():
        hidden[:, 0] = 8.0
        weight[:, 0] = 4.0
    logits = hidden.double() @ weight.double().T
    wanted = cross_entropy(logits, targets, reduction="none")
    losses = token_losses(hidden, weight, targets, chunk)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses.double(), wanted, rtol=0, atol=2e-5)
    loss, offset = summed_loss(hidden, weight, targets, 1.0, chunk)
    assert float(loss) == pytest.approx(float(wanted.sum()), abs=1e-3)
    assert float(offset) / TOKENS > 30


def test_bfloat16_weight_gradients_add_up_in_float32() -> None:
    hidden, weight, targets = inputs(torch.bfloat16)
    exact = weight.detach().float().requires_grad_()
    logits = hidden.detach().float() @ exact.T
    (wanted,) = torch.autograd.grad(cross_entropy(logits, targets, reduction="sum"), [exact])
    loss, _ = summed_loss(hidden, weight, targets, 1.0, 1)
    (found,) = torch.autograd.grad(loss, [weight])
    error = (found.float() - wanted).norm() / wanted.norm()
    assert found.dtype == torch.bfloat16
    assert error < 0.01


def test_extreme_logits_stay_finite() -> None:
    hidden, weight, targets = inputs(torch.float32)
    loss, _ = summed_loss(hidden * 1e4, weight, targets, 1.0, 8)
    (gradient,) = torch.autograd.grad(loss, [weight])
    assert loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("vocabulary", [256, 1024, 131_072])
def test_a_chunk_of_logits_fits_its_budget(vocabulary: int) -> None:
    chunk = chunk_tokens(vocabulary, torch.device("cpu"))
    assert chunk & (chunk - 1) == 0
    assert chunk == 128 or chunk * vocabulary * 4 <= 2**26


def test_a_chunk_on_an_accelerator_is_at_most_a_sequence_of_the_paper() -> None:
    """[8192, 131072] in float32: 4 GiB, whose elements have numbers of 32 bits."""
    assert chunk_tokens(131_072, torch.device("cuda")) == 8192
