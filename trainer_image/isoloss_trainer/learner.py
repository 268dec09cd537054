"""One model and how it learns: a step over a batch, its tensors, its weights raw and averaged.

Knows nothing of the store, of schedules or of tokens beyond those it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from isoloss_contract.records import PointConfig
from isoloss_trainer.balance import ExpertBalance
from isoloss_trainer.micro_batch import first_guess, is_out_of_memory
from isoloss_trainer.model import LanguageModel
from isoloss_trainer.optimizer import OptimizerState, take_into_average
from isoloss_trainer.parameters import FlatParameters
from isoloss_trainer.termination import OutOfMemory
from isoloss_trainer.world import World

Tensors = dict[str, torch.Tensor]


class Learner:
    """Weights, optimizer state and expert balance of one run, on this process's device."""

    def __init__(self, network: Any, point: PointConfig, world: World, halvings: int = 0) -> None:
        self._point, self._world = point, world
        self.model = LanguageModel(network.to(world.device), point.sequence_length)
        compute = torch.bfloat16 if point.precision == "bf16" else torch.float32
        self._flat = FlatParameters(self.model, compute)
        self._state = OptimizerState.of(self._flat.master)
        self.balance = ExpertBalance(network, point.sequence_length)
        self.micro_batch = first_guess(network.config, point, world, halvings)
        if not world.on_cpu:
            # One shape for every batch size of the grid, so that one compiled artifact serves all.
            self.model.compile_body()

    def step(self, batch: torch.Tensor, tokens: int) -> torch.Tensor:
        """Learn from `batch` [B, S + 1], which brings the run to `tokens`; returns its mean loss.

        Nothing is changed before all gradients are there, so that out of memory can halve the
        micro-batch and start the step over. Raises OutOfMemory where a single sequence does not fit.
        """
        self.model.train()
        batch_tokens = batch[:, 1:].numel()
        mine = batch[self._world.share(len(batch))]
        loss = self._gradients(mine, 1.0 / batch_tokens)
        for summed in (loss, self._flat.gradient, *self.balance.counts):
            self._world.sum(summed)
        self._state.step(self._flat.gradient, self._point, tokens, batch_tokens)
        self.balance.finish_step()
        limit = self._point.evaluation.averaging_tokens
        for bias, average in zip(self.balance.biases, self.balance.averaged_biases, strict=True):
            take_into_average(average, bias, tokens, batch_tokens, limit)
        self._flat.publish()
        return loss

    def _gradients(self, batch: torch.Tensor, scale: float) -> torch.Tensor:
        """As _try_gradients, with micro-batches that fit into every process's memory."""
        while True:
            refusal = ""
            try:
                loss = self._try_gradients(batch, scale)
            except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                refusal = str(error) or type(error).__name__
            # Not in the handler: until it ends, the error keeps the failed attempt's tensors alive.
            if not self._world.any(bool(refusal)):
                return loss
            if self.micro_batch == 1:
                message = f"one sequence of {batch.shape[1] - 1} tokens does not fit: {refusal}"
                raise OutOfMemory("OutOfMemory", message[:600])
            self.micro_batch //= 2
            self.balance.discard_step()
            if not self._world.on_cpu:
                torch.cuda.empty_cache()

    def _try_gradients(self, batch: torch.Tensor, scale: float) -> torch.Tensor:
        """Sum the gradients of `scale` times the batch's summed loss; returns that loss."""
        self._flat.clear_gradient()
        total = torch.zeros((), dtype=torch.float32, device=self._world.device)
        # With fewer sequences than processes, some have none; torch would split that into one part.
        for part in torch.split(batch, self.micro_batch) if len(batch) else ():
            tokens = part.to(self._world.device, non_blocking=True)
            loss = self.model.summed_loss(tokens[:, :-1], tokens[:, 1:], scale)
            total += loss.detach()
            penalty = self.balance.take_penalty(scale * (batch.shape[1] - 1))
            (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
            self._flat.collect_gradient()
        return total

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Compute with the averaged weights instead of the raw ones."""
        self._swap_averaged()
        try:
            yield
        finally:
            self._swap_averaged()

    @torch.no_grad()
    def _swap_averaged(self) -> None:
        self._flat.swap(self._state.averaged_weights)
        self.balance.swap_averaged()

    def tensors(self) -> Tensors:
        """All tensors of the training state by name, not copied."""
        raw, averaged = self.balance.biases, self.balance.averaged_biases
        biases = {f"router_bias_{i:03d}": bias for i, bias in enumerate(raw)}
        means = {f"averaged_router_bias_{i:03d}": bias for i, bias in enumerate(averaged)}
        return {**self._state.tensors(), **biases, **means}

    def restore(self, tensors: Tensors) -> None:
        """Continue from `tensors`. Raises KeyError or RuntimeError where they are another model's."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
        self._flat.publish()
