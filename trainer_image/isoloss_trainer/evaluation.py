"""Validation loss: the same fixed sequences for every run, per domain, with standard errors.

Token losses are float32, sums float64. Errors are clustered by document: tokens of one document
are correlated, so that treating them as independent would understate the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import BadData, OutOfMemory, is_out_of_memory
from isoloss_trainer.world import World

TokenLosses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From inputs and targets [batch, S] to the loss of every token."""
Check = Callable[[], None]
"""Raises if the work should end; called equally often in every process."""


@dataclass(frozen=True)
class Loss:
    """Nats per token; not finite if the weights are not."""

    value: float
    standard_error: float | None
    """None for fewer than two documents."""


Losses = tuple[Loss, dict[str, Loss]]
"""Of the mixture and of each domain."""


@dataclass(frozen=True)
class Sequences:
    """Text in sequences of one width: tokens [sequences, width + 1], and for each target [sequences * width] its document
    and the share of it that counts."""

    tokens: NDArray[np.uint32]
    documents: NDArray[np.int64]
    shares: NDArray[np.float64]

    @property
    def width(self) -> int:
        """Targets of a sequence."""
        return int(self.tokens.shape[1]) - 1


@dataclass(frozen=True)
class DomainText:
    """The validation text of a domain in a model's tokens."""

    groups: tuple[Sequences, ...]
    sizes: NDArray[np.float64]
    """Targets in the sweep's tokens, of each document."""

    def loss(
        self,
        losses: TokenLosses,
        world: World,
        tokens_at_once: int,
        check: Check = lambda: None,
    ) -> Loss:
        """Nats of the text per token of the sweep's."""
        sums = np.zeros(len(self.sizes))
        for group in self.groups:
            size = max(1, tokens_at_once // group.width)
            found = run_losses(losses, group.tokens, world, size, check)
            is_read = group.shares > 0
            counted = found[is_read] * group.shares[is_read]
            sums += np.bincount(group.documents[is_read], counted, minlength=len(sums))
        return ratio_loss(sums, self.sizes)


@dataclass(frozen=True)
class DomainSequences:
    """Fixed sequences of a domain: tokens [sequences, S + 1], the document of every target
    [sequences * S], and where in the stream of validation tokens each begins [sequences]."""

    tokens: NDArray[np.uint32]
    documents: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(
        cls, stream: NDArray[np.uint32], end_token: int, length: int, limit: int
    ) -> DomainSequences:
        """At most `limit` sequences, spread evenly over the stream to cover many documents."""
        available = (len(stream) - 1) // length
        count = min(limit, available)
        if count < 1:
            raise BadData("DomainTooSmall", "no whole validation sequence")
        # A target belongs to a new document when its input is an end token.
        numbers = np.cumsum(np.asarray(stream) == end_token)
        starts = np.arange(count, dtype=np.int64) * available // count * length
        tokens = np.stack([stream[start : start + length + 1] for start in starts])
        documents = np.concatenate([numbers[start : start + length] for start in starts])
        return cls(tokens, documents, starts)

    @property
    def text(self) -> DomainText:
        """All of it."""
        _, documents, sizes = np.unique(self.documents, return_inverse=True, return_counts=True)
        shares = np.ones(len(documents))
        group = Sequences(self.tokens, documents.astype(np.int64), shares)
        return DomainText((group,), sizes.astype(np.float64))


class ValidationSet:
    """The validation sequences of every domain of a mixture."""

    def __init__(self, data: PreparedData, mixture: Mapping[str, float], limit: int) -> None:
        self.mixture = dict(mixture)
        end, length = data.manifest.end_token, data.manifest.sequence_length
        self.domains = {
            name: DomainSequences.of(data.validation_stream(name), end, length, limit)
            for name in sorted(mixture)
        }

        self.texts = {name: domain.text for name, domain in self.domains.items()}

    def evaluate(
        self, losses: TokenLosses, world: World, micro_batch: int, check: Check = lambda: None
    ) -> Losses:
        """Loss of the mixture and of each domain, `micro_batch` sequences at a time."""
        found = {
            name: text.loss(losses, world, micro_batch * text.groups[0].width, check)
            for name, text in self.texts.items()
        }
        return mixed_loss(found, self.mixture), found


@torch.no_grad()
def run_losses(
    losses: TokenLosses,
    tokens: NDArray[np.uint32],
    world: World,
    micro_batch: int,
    check: Check = lambda: None,
) -> NDArray[np.float64]:
    """Loss of every target of `tokens` [sequences, S + 1]: [sequences * S], shared among processes.

    `check` is called before each micro-batch. On an accelerator the last batch is padded: code is
    compiled for one shape. Raises OutOfMemory in every process if a sequence does not fit in one.
    """
    device = world.device
    found = torch.zeros(len(tokens), tokens.shape[1] - 1, device=device)
    mine = world.share(len(tokens))
    refusal: OutOfMemory | None = None
    # As often in every process: of a model that they share, each has a part of the weights.
    for number in range(world.rounds(len(tokens), micro_batch)):
        check()
        start = mine.start + number * micro_batch
        end = max(start, min(start + micro_batch, mine.stop))
        if not world.holds_copy or refusal is not None:
            continue
        filled = max(end, start + 1) if world.on_cpu else start + micro_batch
        rows = np.arange(start, filled) % len(tokens)
        batch = torch.from_numpy(tokens[rows].astype(np.int64)).to(device)
        try:
            losses_found = fitting_losses(losses, batch[:, :-1], batch[:, 1:])
            found[start:end] = losses_found[: end - start]
        except OutOfMemory as error:
            refusal = error
    # Agreed on: a process that left alone would keep the others waiting for its part of the sum.
    if world.any(refusal is not None):
        raise refusal or OutOfMemory("OutOfMemory", "one sequence does not fit in another process")
    world.sum(found)
    return found.double().cpu().numpy().ravel()


def fitting_losses(
    losses: TokenLosses, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """The losses, with the batch halved if memory runs out.

    Raises OutOfMemory if a single sequence does not fit.
    """
    try:
        return losses(inputs, targets)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(inputs) == 1:
            message = f"one sequence of {inputs.shape[1]} tokens does not fit: {error}"
            raise OutOfMemory("OutOfMemory", message[:400]) from error
    # Not in the handler: until it ends, the error keeps the failed attempt's tensors alive.
    half = len(inputs) // 2
    parts = ((inputs[:half], targets[:half]), (inputs[half:], targets[half:]))
    return torch.cat([fitting_losses(losses, *part) for part in parts])


def ratio_loss(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> Loss:
    """Summed loss over summed size (tokens or bytes) of documents, with the error of that ratio."""
    mean = sums.sum() / sizes.sum()
    number = len(sizes)
    if number < 2 or not math.isfinite(mean):
        return Loss(float(mean), None)
    residuals = sums - mean * sizes
    variance = number / (number - 1) * (residuals**2).sum() / sizes.sum() ** 2
    return Loss(float(mean), float(math.sqrt(variance)))


def mixed_loss(domains: Mapping[str, Loss], mixture: Mapping[str, float]) -> Loss:
    """The domains' losses weighted by the mixture; domains are independent."""
    value = sum(mixture[name] * loss.value for name, loss in domains.items())
    errors = [(mixture[name], loss.standard_error) for name, loss in domains.items()]
    if any(error is None for _, error in errors):
        return Loss(value, None)
    return Loss(value, math.sqrt(sum((weight * (error or 0.0)) ** 2 for weight, error in errors)))


def bytes_per_token(data: PreparedData, mixture: Mapping[str, float]) -> float:
    """UTF-8 bytes per validation token, weighted by the mixture."""
    domains = {name: data.domain(name) for name in mixture}
    return sum(
        share * domains[name].validation_bytes / domains[name].validation_tokens
        for name, share in mixture.items()
    )
