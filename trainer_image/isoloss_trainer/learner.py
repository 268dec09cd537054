"""One model and how it learns: a step over a batch, its tensors, its weights raw and averaged.

Knows nothing of the store, of schedules or of tokens beyond those it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from isoloss_contract.records import PointConfig
from isoloss_trainer.attention_kernels import AttentionKernel
from isoloss_trainer.balance import ExpertBalance
from isoloss_trainer.micro_batch import first_guess, is_out_of_memory
from isoloss_trainer.model import LanguageModel
from isoloss_trainer.named_tensors import Parts, Tensors, check_layout
from isoloss_trainer.optimizer import OptimizerState, take_into_average
from isoloss_trainer.parameters import FlatParameters
from isoloss_trainer.termination import OutOfMemory
from isoloss_trainer.world import World

FLAT = ("weights", "averaged_weights", "first_moment", "second_moment")
"""Parts of the training state with a value for each weight."""
OTHERS = "others"
"""The part with everything else."""


class StepFacts(NamedTuple):
    """What a step found out: float32 scalars on the run's device, so that reading them waits for it."""

    loss: torch.Tensor
    """Mean over the batch in nats per token, before the step."""
    offset: torch.Tensor
    """Mean log of the softmax's denominator."""
    gradient_norm: torch.Tensor
    """Before clipping."""


class Learner:
    """Weights, optimizer state and expert balance of one run, on this process's device."""

    def __init__(self, network: Any, point: PointConfig, world: World, halvings: int = 0) -> None:
        self._point, self.world = point, world
        self.model = LanguageModel(network.to(world.device), point.sequence_length)
        compute = torch.bfloat16 if point.precision == "bf16" else torch.float32
        self._flat = FlatParameters(network, compute, world)
        self._state = OptimizerState.of(self._flat.master)
        self.balance = ExpertBalance(network, point.sequence_length)
        guess = first_guess(network, point, world, halvings)
        self.micro_batch, self.recompute = guess.sequences, False
        self._staging: Tensors = {}
        if not world.on_cpu:
            # One shape for every batch size of the grid, so that one compiled artifact serves all.
            self.model.compile_body()
        if guess.recompute:
            self.start_recomputing()

    def step(self, batch: torch.Tensor, tokens: int, rate_factor: float = 1.0) -> StepFacts:
        """Learn from `batch` [B, S + 1], which brings the run to `tokens`, at the schedule's learning rate
        times `rate_factor`.

        Nothing is changed before all gradients are there, so that out of memory can halve the
        micro-batch, at last recompute layers, and start the step over. Raises OutOfMemory where a single
        sequence does not fit.
        """
        self.model.train()
        batch_tokens = batch[:, 1:].numel()
        mine = batch[self.world.share(len(batch))]
        means = self._gradients(mine, 1.0 / batch_tokens)
        for summed in (means, *self.balance.counts):
            self.world.sum(summed)
        norm = self._state.step(
            self._flat.summed_gradient,
            self._point,
            tokens,
            batch_tokens,
            self.world,
            rate_factor,
        )
        self.balance.finish_step()
        limit = self._point.evaluation.averaging_tokens
        for average, bias in self.balance.averages_and_biases():
            take_into_average(average, bias, tokens, batch_tokens, limit)
        self._flat.publish()
        return StepFacts(means[0], means[1], norm)

    def _gradients(self, batch: torch.Tensor, scale: float) -> torch.Tensor:
        """As _try_gradients, with micro-batches that fit into every process's memory."""
        while True:
            refusal = ""
            try:
                means = self._try_gradients(batch, scale)
            except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                refusal = str(error) or type(error).__name__
            # Not in the handler: until it ends, the error keeps the failed attempt's tensors alive.
            # First the sum: other processes wait for this one's share of it.
            self._flat.finish_sum()
            if not self.world.any(bool(refusal)):
                return means
            if self.micro_batch == 1 and self.recompute:
                message = f"one sequence of {batch.shape[1] - 1} tokens does not fit: {refusal}"
                raise OutOfMemory("OutOfMemory", message[:600])
            if self.micro_batch == 1:
                self.start_recomputing()
            self.micro_batch = max(1, self.micro_batch // 2)
            self.balance.discard_step()
            if not self.world.on_cpu:
                torch.cuda.empty_cache()

    def _try_gradients(self, batch: torch.Tensor, scale: float) -> torch.Tensor:
        """The gradients of `scale` times the batch's summed loss, whose sum over all processes begins with the last
        micro-batch; returns that loss and the offsets, scaled and summed alike."""
        self._flat.clear_gradient()
        total = torch.zeros(2, dtype=torch.float32, device=self.world.device)
        z_loss = self._point.optimizer.z_loss
        # With fewer sequences than processes, some have none; torch would split that into one part.
        parts = torch.split(batch, self.micro_batch) if len(batch) else ()
        for number, part in enumerate(parts, 1):
            tokens = part.to(self.world.device, non_blocking=True)
            loss, offset = self.model.summed_loss(tokens[:, :-1], tokens[:, 1:], scale, z_loss)
            total += torch.stack([loss.detach(), offset])
            penalty = self.balance.take_penalty(scale * (batch.shape[1] - 1))
            is_last = number == len(parts)
            with (
                self.balance.backward_pass(),
                self._flat.summing_gradient() if is_last else nullcontext(),
            ):
                (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
            if not is_last:
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
        """All tensors of the training state, not copied; of the flat ones, this process's part."""
        return {**self._state.tensors(), **self.balance.biases, **self.balance.averaged_biases}

    def copied(self) -> Parts | None:
        """The training state in rank 0's host memory, by names that mean the same whatever the order of
        the model's layers; None in other processes. All processes call this at the same step.

        The memory is pinned and used again by the next call: an accelerator writes several times as fast into
        pinned memory, and pinning it takes longer than the copy.
        """
        copies: Tensors = {}
        for name, tensor in self.tensors().items():
            copy = self._staging_of(name, tensor) if self.world.is_first else None
            if name in FLAT:
                self.world.collect_parts(copy, tensor)
            elif copy is not None:
                copy.copy_(tensor, non_blocking=True)
            if copy is not None:
                copies[name] = copy
        if not self.world.on_cpu:
            torch.cuda.synchronize()
        return self._named(copies) if self.world.is_first else None

    def reserve_staging(self) -> None:
        """Pin the memory that `copied` writes to, so that the first checkpoint does not wait for that."""
        if self.world.is_first and not self.world.on_cpu:
            for name, tensor in self.tensors().items():
                self._staging_of(name, tensor)

    def _staging_of(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in self._staging:
            shape = [self._flat.size] if name in FLAT else tensor.shape
            pinned = not self.world.on_cpu
            self._staging[name] = torch.empty(shape, dtype=tensor.dtype, pin_memory=pinned)
        return self._staging[name]

    def _named(self, tensors: Tensors) -> Parts:
        parts = {name: self._flat.named(tensors[name]) for name in FLAT}
        others = {name: tensor for name, tensor in tensors.items() if name not in FLAT}
        return {**parts, OTHERS: others}

    def restore(self, parts: Parts | None) -> None:
        """Continue from what `copied` gave, in as many processes or another number of them; rank 0 has
        `parts` and hands them out. Raises OtherLayout where names or shapes differ."""
        mine = self.tensors()
        if parts is not None:
            shapes = {name: torch.empty(self._flat.size, device="meta") for name in FLAT}
            check_layout(self._named({**mine, **shapes}), parts)
        for name, tensor in mine.items():
            if name in FLAT:
                full = None if parts is None else self._joined(parts[name])
                self.world.hand_out_parts(full, tensor)
            else:
                if parts is not None:
                    tensor.copy_(parts[OTHERS][name])
                self.world.broadcast(tensor)
        self._flat.publish()

    def _joined(self, tensors: Tensors) -> torch.Tensor:
        full = torch.zeros(self._flat.size)
        for name, view in self._flat.named(full).items():
            view.copy_(tensors[name])
        return full

    def start_recomputing(self) -> None:
        """From now on keep each layer's input alone for the backward pass, and compute the layer again
        there: a third slower, and the last way to make a sequence fit."""
        self.recompute = True
        self.model.recompute_layers()
        if self.balance.has_loss and not self.world.on_cpu:
            # The balance loss of a layer that is computed again leaves the graph.
            self.model.compile_body(whole=False)

    def use_attention(self, kernel: AttentionKernel) -> None:
        """From now on hand attention what `kernel` takes; before the first step."""
        if kernel.narrow:
            self.model.keep_values_narrow()

    def limit_micro_batch(self, sequences: int) -> None:
        """Compute with at most `sequences` at once."""
        self.micro_batch = min(sequences, self.micro_batch)
