"""One model and how it learns: a step over a batch, its state, its weights raw and averaged.

Knows nothing of the store, of schedules or of tokens beyond those it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from isoloss_contract.records import PointConfig
from isoloss_trainer.averaging import WeightAverage
from isoloss_trainer.balance import ExpertBalance
from isoloss_trainer.micro_batch import first_guess, is_out_of_memory
from isoloss_trainer.model import LanguageModel
from isoloss_trainer.optimizer import AdamW, learning_rate
from isoloss_trainer.parameters import FlatParameters
from isoloss_trainer.termination import OutOfMemory
from isoloss_trainer.world import World

State = dict[str, torch.Tensor]


class Learner:
    """Weights, optimizer, average and balance of one run, on this process's device."""

    def __init__(self, network: Any, point: PointConfig, world: World, halvings: int = 0) -> None:
        self._point, self._world = point, world
        self.model = LanguageModel(network.to(world.device), point.sequence_length)
        compute = torch.bfloat16 if point.precision == "bf16" else torch.float32
        self._flat = FlatParameters(self.model, compute)
        self._optimizer = AdamW(point.optimizer, self._flat.master)
        self._average = WeightAverage(self._flat.master, point.evaluation.averaging_tokens)
        self.balance = ExpertBalance(network, point.sequence_length)
        self.micro_batch = first_guess(network.config, point, world, halvings)
        if world.device.type == "cuda":
            # One shape for every batch size of the grid, so that one compiled artifact serves all.
            self.model.compile_body()

    # ------------------------------------------------------------------------------- learning

    def step(self, batch: torch.Tensor, tokens: int) -> torch.Tensor:
        """Learn from `batch` [B, S + 1], which brings the run to `tokens`; returns its mean loss.

        Out of memory halves the micro-batch and begins the step anew: nothing is changed before
        all gradients are there. Raises OutOfMemory where single sequences do not fit.
        """
        point = self._point
        self.model.train()
        mine = batch[self._world.share(len(batch))]
        loss = self._gradients(mine, 1.0 / batch[:, 1:].numel())
        self._world.sum(loss)
        self._world.sum(self._flat.gradient)
        for count in self.balance.counts:
            self._world.sum(count)
        rate = learning_rate(point.learning_rate, tokens, point.optimizer.warmup_tokens)
        self._optimizer.step(self._flat.gradient, rate)
        self.balance.finish_step()
        self._flat.publish()
        self._average.update(self._flat.master, tokens, batch[:, 1:].numel())
        return loss

    def _gradients(self, batch: torch.Tensor, scale: float) -> torch.Tensor:
        while True:
            try:
                return self._try_gradients(batch, scale)
            except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.micro_batch == 1:
                    message = f"one sequence of {batch.shape[1] - 1} tokens does not fit: {error}"
                    raise OutOfMemory("OutOfMemory", message[:600]) from error
            self.micro_batch //= 2
            self.balance.drop()
            if self._world.device.type == "cuda":
                torch.cuda.empty_cache()

    def _try_gradients(self, batch: torch.Tensor, scale: float) -> torch.Tensor:
        """Sum the gradients of `scale` times the batch's summed loss; returns that loss."""
        self._flat.clear_gradient()
        total = torch.zeros((), dtype=torch.float32, device=self._world.device)
        for part in torch.split(batch, self.micro_batch):
            tokens = part.to(self._world.device, non_blocking=True)
            loss = self.model.summed_loss(tokens[:, :-1], tokens[:, 1:], scale)
            total += loss.detach()
            penalty = self.balance.take_penalty(scale * (batch.shape[1] - 1))
            (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
            self._flat.collect_gradient()
        return total

    # ------------------------------------------------------------------------------- measuring

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights in place of the raw ones."""
        self._flat.swap(self._average.weights)
        try:
            yield
        finally:
            self._flat.swap(self._average.weights)

    # ----------------------------------------------------------------------------------- state

    def state(self) -> State:
        """The tensors that, with the step number, are all of the training state."""
        return {
            "weights": self._flat.master,
            "averaged_weights": self._average.weights,
            "first_moment": self._optimizer.first_moment,
            "second_moment": self._optimizer.second_moment,
            "optimizer_steps": self._optimizer.steps,
            **{f"router_bias_{i:03d}": bias for i, bias in enumerate(self.balance.biases)},
        }

    def restore(self, state: State) -> None:
        """Take over a state. KeyError or RuntimeError where it is another model's."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        self._flat.publish()
