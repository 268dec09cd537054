"""One model and how it learns: how many sequences go through it at once, a step over a batch, its tensors, its weights raw
and averaged. The average stands in for the decay of the learning rate that a run never gets.

Of several processes each has its part of every weight in float32, and with it of gradients, average and moments (ZeRO,
stage 3: Rajbhandari et al. 1910.02054). A layer's weights are put together, in the type that computes, while the layer
computes; gradients are summed in float32. A single process that computes in float32 needs none of this.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from isoloss_contract.footprint import (
    Fit,
    Footprint,
    ModelShape,
    Precision,
    copied_numbers,
    fit,
    kept_numbers,
)
from isoloss_contract.memory import DEVICES, FILE_BYTES, GPUS_OF_NODE, PROCESS_BYTES
from isoloss_contract.records import PointConfig, TimeConstants, TrainTask
from isoloss_trainer.checkpoint import Tensors
from isoloss_trainer.experts import ExpertBalance, averaged_name, biases_of, routers_of
from isoloss_trainer.model import COUNTED, LanguageModel, build_network, check_counts, layers_of
from isoloss_trainer.termination import MemoryRefused, OutOfMemory, is_out_of_memory
from isoloss_trainer.world import World

# --------------------------------------------------------------------------------- sequences at once


CPU_TOKENS = 4096
"""On a CPU more is slower: the caches are small."""
CONTEXT_BYTES = 2**30
"""At most, of the driver's own in a process, which the plan's share leaves room for."""


def first_try(network: Any, point: PointConfig, world: World, halvings: int) -> Fit | None:
    """How to start after earlier attempts to which memory was refused so often; None if nothing is left to try."""
    guess = first_guess(network, point, world, halvings)
    # On an accelerator what the launcher of one pod counts is halved by. Of several none can start the others again: each
    # refusal ends the attempt, and is among the `halvings`.
    ended = halvings if world.spans_pods and not world.on_cpu else 0
    return after_refusals(guess, world.refusals + ended)


def first_guess(network: Any, point: PointConfig, world: World, halvings: int) -> Fit:
    """How to start.

    `halvings` counts earlier attempts that the host killed for its own memory, which holds the
    activations on a CPU only. Out-of-memory errors halve a guess too high for an accelerator.
    """
    length = point.sequence_length
    fitting = Fit(CPU_TOKENS // length, recompute=False)
    if not world.on_cpu:
        fitting = _fitting(network, point, world)
    share = -(-point.batch_size // world.size)
    size = max(1, min(fitting.sequences, share) >> (halvings if world.on_cpu else 0))
    # Free memory differs between devices, but all processes must agree.
    size = -world.largest(-size)
    return Fit(micro_batch(share, size), world.any(fitting.recompute))


def after_refusals(guess: Fit, refusals: int) -> Fit | None:
    """What to try once memory was refused so often to processes that began with `guess`: half as much each time,
    at last with layers computed twice; None if nothing is left to try."""
    sequences, recompute = guess
    for _ in range(refusals):
        if sequences == 1 and recompute:
            return None
        recompute = recompute or sequences == 1
        sequences = max(1, sequences // 2)
    return Fit(sequences, recompute)


def _fitting(network: Any, point: PointConfig, world: World) -> Fit:
    """What the plan says, given what others have on the device; if nothing seems to fit, one sequence: the count
    is not exact."""
    free, total = torch.cuda.mem_get_info(world.device)
    ours = torch.cuda.memory_reserved(world.device) + CONTEXT_BYTES
    needed = footprint(network, point.precision, world.size)
    found = fit(needed, point.sequence_length, total - max(0, total - free - ours))
    return found or Fit(1, recompute=True)


# --------------------------------------------------------------------------------------------- steps


WEIGHTS, AVERAGED = "weights", "averaged_weights"
MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}
"""And what torch's optimizer calls them. These four, with a value for each weight, come before its name."""


class StepFacts(NamedTuple):
    """What a step found out: float32 scalars on the run's device, so that reading them waits for it."""

    loss: torch.Tensor
    """Mean over the batch in nats per token, before the step."""
    offset: torch.Tensor
    """Mean log of the softmax's denominator."""
    gradient_norm: torch.Tensor
    """Before clipping."""


class Learner:
    """Weights, optimizer state and expert balance of one run: this process's part of them, on its device."""

    def __init__(
        self,
        network: Any,
        point: PointConfig,
        world: World,
        halvings: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`network` has its weights in rank 0's host memory; that of other processes may be on the meta device.

        `check` raises if a step should be abandoned, before anything is changed: it is called between
        micro-batches, equally often in every process.
        """
        self._point, self.world, self._check = point, world, check
        self.model = LanguageModel(network, point.sequence_length)
        if is_sharded(point.precision, world):
            shard(self.model, point.precision, world)
        else:
            network.to(world.device, torch.float32)
        named = dict(network.named_parameters())
        self._names, self._weights = list(named), list(named.values())
        self._averaged = [weight.detach().clone() for weight in self._weights]
        self._optimizer = adamw(self._weights, point)
        self._steps = [self._optimizer.state[weight]["step"] for weight in self._weights]
        self.balance = ExpertBalance(network, point.sequence_length)
        fitting = first_try(network, point, world, halvings)
        self._fits = fitting is not None
        self.micro_batch, self.recompute = fitting or Fit(1, recompute=True)
        self._host: Tensors = {}
        self._prepare_layers()

    @property
    def is_compiled(self) -> bool:
        """On an accelerator; not experts in float32, whose grouped products the compiler does not know."""
        known = self._point.precision == "bf16" or not self.balance
        return known and not self.world.on_cpu

    def step(self, batch: torch.Tensor, tokens: int) -> StepFacts:
        """Learn from `batch` [B, S + 1], which brings the run to `tokens`. Raises MemoryRefused, and OutOfMemory once
        nothing less is left to try."""
        if not self._fits:
            message = f"one sequence of {batch.shape[1] - 1} tokens does not fit"
            raise OutOfMemory("OutOfMemory", message)
        self.model.train()
        batch_tokens = batch[:, 1:].numel()
        with self._naming_refusals():
            means = self._gradients(batch, 1.0 / batch_tokens)
            return self._take_gradients(means, tokens, batch_tokens)

    @contextmanager
    def _naming_refusals(self) -> Iterator[None]:
        """Raises MemoryRefused if memory is refused. There is no way back from it: other processes wait for this one's
        part, and some weights may have taken the step."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            message = f"a micro-batch of {self.micro_batch} does not fit: {error}"
            raise MemoryRefused(message[:600]) from error

    def _take_gradients(self, means: torch.Tensor, tokens: int, batch_tokens: int) -> StepFacts:
        for summed in (means, *self.balance.counts):
            self.world.sum(summed)
        norm = clip(self._weights, self._point.optimizer.gradient_clip)
        self._optimizer.param_groups[0]["lr"] = self.learning_rate(tokens)
        self._optimizer.step()
        self.balance.finish_step()
        weights, averages = zip(*self._weights_and_averages(), strict=True)
        limit = self._point.evaluation.averaging_tokens
        take_into_average(averages, weights, tokens, batch_tokens, limit)
        return StepFacts(means[0], means[1], norm)

    def learning_rate(self, tokens: int) -> float:
        """Of the step that brings the run to `tokens`: linear in the warm-up, then constant."""
        peak, warmup = self._point.learning_rate, self._point.optimizer.warmup_tokens
        return peak * min(1.0, tokens / warmup) if warmup else peak

    def _gradients(self, batch: torch.Tensor, scale: float) -> torch.Tensor:
        """The gradients of `scale` times the batch's summed loss, summed over all processes; returns that loss and
        the offsets of this process's part of the batch, scaled and summed alike."""
        self._optimizer.zero_grad()
        self.balance.discard_step()
        total = torch.zeros(2, dtype=torch.float32, device=self.world.device)
        mine, z_loss = batch[self.world.share(len(batch))], self._point.optimizer.z_loss
        # As often in every process: each needs the others' weights and gradients.
        for number in range(self.world.rounds(len(batch), self.micro_batch)):
            if number:
                self._check()
            part = mine[number * self.micro_batch : (number + 1) * self.micro_batch]
            if not len(part):
                self._take_part(batch[:1], z_loss)
                continue
            tokens = part.to(self.world.device, non_blocking=True)
            loss, offset = self.model.summed_loss(tokens[:, :-1], tokens[:, 1:], scale, z_loss)
            total += torch.stack([loss.detach(), offset])
            penalty = self.balance.take_penalty(scale * (batch.shape[1] - 1))
            with self.balance.uncounted():
                (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
        return total

    def _take_part(self, sequence: torch.Tensor, z_loss: float) -> None:
        """In a micro-batch for which there is no sequence left here: with gradients of zero."""
        tokens = sequence.to(self.world.device)
        with self.balance.uncounted():
            loss, _ = self.model.summed_loss(tokens[:, :-1], tokens[:, 1:], 0.0, z_loss)
            loss.backward()  # type: ignore[no-untyped-call]

    def token_losses(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Loss of every token, float32 [batch, S]; all processes call this equally often. Raises MemoryRefused."""
        with self._naming_refusals():
            return self.model.eval().token_losses(inputs, targets)

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
        for weight, average in self._weights_and_averages():
            kept = local(weight).clone()
            local(weight).copy_(local(average))
            local(average).copy_(kept)
        forget_whole_weights(self.model)

    def _weights_and_averages(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Of the model, biases of its routers included."""
        biases = self.balance.biases.values()
        yield from zip(self._weights, self._averaged, strict=True)
        yield from zip(biases, self.balance.averaged_biases.values(), strict=True)

    def tensors(self) -> Tensors:
        """All tensors of the training state, not copied: DTensors if processes have parts. Their names mean the
        same whatever the order of the model's layers."""
        states = [self._optimizer.state[weight] for weight in self._weights]
        parts = {
            WEIGHTS: [weight.detach() for weight in self._weights],
            AVERAGED: self._averaged,
            **{part: [state[theirs] for state in states] for part, theirs in MOMENTS.items()},
        }
        return {
            **{
                f"{part}.{name}": tensor
                for part, tensors in parts.items()
                for name, tensor in zip(self._names, tensors, strict=True)
            },
            "optimizer_steps": self._steps[0],
            **self.balance.biases,
            **self.balance.averaged_biases,
        }

    def on_host(self) -> Tensors:
        """Room for `tensors` in the host's memory, the same at every call, with what was last copied there.

        It is pinned: an accelerator writes several times as fast there, and pinning takes longer than the copy.
        """
        if not self._host:
            self._host = {name: self._room_for(tensor) for name, tensor in self.tensors().items()}
        return self._host

    def _room_for(self, tensor: torch.Tensor) -> torch.Tensor:
        part = local(tensor)
        room = torch.empty(part.shape, dtype=part.dtype, pin_memory=not self.world.on_cpu)
        if not isinstance(tensor, DTensor):
            return room
        mesh = self.world.mesh("cpu")
        return DTensor.from_local(
            room,
            mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )

    @torch.no_grad()
    def copied(self) -> Tensors:
        """The training state in the host's memory, until the next call."""
        copies = self.on_host()
        for name, tensor in self.tensors().items():
            local(copies[name]).copy_(local(tensor), non_blocking=True)
        if not self.world.on_cpu:
            torch.cuda.synchronize()
        return copies

    @torch.no_grad()
    def restore(self) -> None:
        """Continue from what is `on_host`."""
        copies = self.on_host()
        for name, tensor in self.tensors().items():
            local(tensor).copy_(local(copies[name]))
        for steps in self._steps[1:]:
            steps.copy_(self._steps[0])
        forget_whole_weights(self.model)

    def start_recomputing(self) -> None:
        """From now on keep each layer's input alone for the backward pass, and compute the layer again
        there: a third slower, and the last way to make a sequence fit."""
        self.recompute = True
        self._prepare_layers()

    def _prepare_layers(self) -> None:
        # One shape for every batch size of the grid, so that one compiled artifact serves all. The balance loss of
        # a layer that is computed again leaves the graph.
        whole = not (self.recompute and self.balance.has_loss)
        if self.is_compiled or self.recompute:
            self.model.prepare_layers(
                recompute=self.recompute, compiled=self.is_compiled, whole=whole
            )

    def limit_micro_batch(self, sequences: int) -> None:
        """Compute with at most `sequences` at once."""
        self.micro_batch = min(sequences, self.micro_batch)


def tensors_of(network: Any, *, averaged: bool) -> Tensors:
    """The parts of a learner's `tensors` that are a model: its weights and biases, raw or averaged, not copied."""
    part = AVERAGED if averaged else WEIGHTS
    weights = {f"{part}.{name}": weight.detach() for name, weight in network.named_parameters()}
    biases = biases_of(routers_of(network))
    if not averaged:
        return {**weights, **biases}
    return {**weights, **{averaged_name(name): bias for name, bias in biases.items()}}


# -------------------------------------------------------------------------- what the optimizer does


AVERAGING_SHARE = 0.1
"""The average's time constant is at most this share of the tokens seen: it must forget the start. It is counted in
tokens, so that it means the same at every batch size."""


def adamw(weights: Iterable[torch.nn.Parameter], point: PointConfig) -> torch.optim.AdamW:
    """Decoupled weight decay on every weight, which is also torch's default. Its state is there at once, zero."""
    optimizer = torch.optim.AdamW(
        weights,
        betas=(point.optimizer.beta1, second_moment_decay(point)),
        weight_decay=weight_decay(point),
        eps=point.optimizer.epsilon,
        fused=True,
    )
    for weight in optimizer.param_groups[0]["params"]:
        optimizer.state[weight] = {
            "step": torch.zeros((), dtype=torch.float32, device=weight.device),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
    return optimizer


def second_moment_decay(point: PointConfig) -> float:
    """beta2 of one step: as configured, or so that its time constant in tokens is."""
    constant = point.optimizer.second_moment_tokens
    return math.exp(-_batch_tokens(point) / constant) if constant else point.optimizer.beta2


def weight_decay(point: PointConfig) -> float:
    """As configured, or so that weights decay with the configured time constant in tokens at the peak
    learning rate: a step takes away learning rate x weight decay of them, 1 - exp(-step / constant)."""
    constant = point.optimizer.weight_decay_tokens
    if not constant:
        return point.optimizer.weight_decay
    return -math.expm1(-_batch_tokens(point) / constant) / point.learning_rate


def time_constants(point: PointConfig) -> TimeConstants:
    """Over how many tokens the point's optimizer forgets."""
    decay = point.learning_rate * weight_decay(point)
    return TimeConstants(
        first_moment_tokens=_constant(point.optimizer.beta1, point),
        second_moment_tokens=_constant(second_moment_decay(point), point),
        weight_decay_tokens=_batch_tokens(point) / -math.log1p(-decay) if 0 < decay < 1 else None,
    )


def _constant(beta: float, point: PointConfig) -> float | None:
    """Time constant of an average that keeps `beta` of itself at each step; None if it keeps nothing."""
    return _batch_tokens(point) / -math.log(beta) if beta else None


def _batch_tokens(point: PointConfig) -> int:
    return point.batch_size * point.sequence_length


@torch.no_grad()
def take_into_average(
    averages: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    tokens: int,
    batch_tokens: int,
    averaging_tokens: int = 0,
) -> None:
    """Move `averages` in place towards the weights after the step of `batch_tokens` that brought the
    run to `tokens`. `averaging_tokens` bounds the time constant; 0: by AVERAGING_SHARE alone."""
    constant = AVERAGING_SHARE * tokens
    if averaging_tokens:
        constant = min(constant, averaging_tokens)
    share = -math.expm1(-batch_tokens / constant)
    if averages:
        torch._foreach_lerp_(list(map(local, averages)), list(map(local, weights)), share)


def clip(weights: Sequence[torch.nn.Parameter], largest_norm: float) -> torch.Tensor:
    """Scale the gradients of `weights`, of all processes, in place to a norm of at most `largest_norm`; returns the
    norm before, without waiting for the device."""
    norm = torch.nn.utils.clip_grad_norm_(weights, largest_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


# -------------------------------------------------------------------- weights spread over processes


FORWARD_METHODS = ("summed_loss", "token_losses")
"""Methods of LanguageModel that gather the weights that belong to no layer."""


def is_sharded(precision: Literal["bf16", "float32"], world: World) -> bool:
    """Whether weights are spread; of one process also if it computes in another type than it keeps."""
    return world.size > 1 or precision == "bf16"


def shard(model: LanguageModel, precision: Literal["bf16", "float32"], world: World) -> None:
    """Spread `model` by torch's fully_shard over all processes, on their devices, with the weights that rank 0 has in
    its host's memory.

    What other processes have is not looked at; it may be on the meta device. On a device there is never more than
    the parts, and one whole tensor.
    """
    network = model.network
    weights = {**network.state_dict()} if world.is_first else {}
    _forget_weights(network)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if precision == "bf16" else None, reduce_dtype=torch.float32
    )
    mesh = world.mesh(world.device_type)
    for module in (*model.layers, model):
        # The root, which is put together last and needed first, stays so between forward and backward pass.
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=module is not model)
        assert isinstance(module, FSDPModule)
        # A sum, not a mean: losses are scaled by the whole batch's tokens.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    for method in FORWARD_METHODS:
        register_fsdp_forward_method(model, method)
    model._apply(lambda t: _placed(t, world.device))  # type: ignore[no-untyped-call]
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(network, weights, options=options)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor, not copied."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def forget_whole_weights(model: nn.Module) -> None:
    """Call after a change of the weights outside of the optimizer: what was put together before it is stale."""
    if isinstance(model, FSDPModule):
        model.reshard()


def _forget_weights(network: Any) -> None:
    """Leave the shapes of all parameters on the meta device, in float32 whatever they were kept in; those that are
    tied stay so."""
    shapes: dict[nn.Parameter, nn.Parameter] = {}
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                shape = nn.Parameter(
                    parameter.detach().to("meta", torch.float32), parameter.requires_grad
                )
                module._parameters[name] = shapes.setdefault(parameter, shape)


def _placed(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)


# ------------------------------------------------------------------- memory, counted from the model
# isoloss_contract.footprint has what is on the accelerator, part by part: the operator counts the same from a config. What
# the compiler keeps beyond or below that is in docs/reference/memory.md.


def footprint(network: Any, precision: Precision, processes: int = 1) -> Footprint:
    """Memory for training `network` (transformers, also on the meta device) in `processes` processes."""
    return shape_of(network).footprint(precision, processes)


def shape_of(network: Any) -> ModelShape:
    """Of a transformers model, also on the meta device."""
    total = sum(p.numel() for p in network.parameters())
    layers = [sum(p.numel() for p in layer.parameters()) for layer in layers_of(network)]
    vocabulary, hidden = network.get_output_embeddings().weight.shape
    config = network.config
    # Some families, such as GPT-2, write them under other names.
    numbers = {**config.to_dict(), **{name: getattr(config, name) for name in COUNTED}}
    return ModelShape(
        parameters=total,
        largest_layer=max(layers, default=0),
        outside_layers=total - sum(layers),
        hidden=hidden,
        heads=config.num_attention_heads,
        vocabulary=vocabulary,
        kept=kept_numbers(numbers),
        copied=copied_numbers(numbers),
    )


class HostFootprint(NamedTuple):
    """Bytes of a node's memory, of all processes on it together."""

    build: int
    """Until the weights are on the accelerators: of the first node, where rank 0 has them whole."""
    train: int
    """With a copy of its part of the training state, pinned, from which checkpoints are written, and what is being
    written. Resuming takes no more: a checkpoint is read into the same copy."""


def host_footprint(
    network: Any, processes: int, given: Literal["random", "bf16", "float32"] = "random"
) -> HostFootprint:
    """Host memory for training on `processes` accelerators, GPUS_OF_NODE of them on a node. `given`: weights that are
    drawn, or a checkpoint's in that type."""
    sizes = [p.numel() for p in network.parameters()]
    here = min(processes, GPUS_OF_NODE)
    # An allocation of pinned memory is rounded up to a power of two; there are four of each weight.
    copies = sum(4 * _power_of_two(4 * -(-size // processes)) for size in sizes)
    files = FILE_BYTES + 4 * max(sizes) // processes
    return HostFootprint(
        build=here * PROCESS_BYTES + sum(sizes) * (2 if given == "bf16" else 4),
        train=here * (PROCESS_BYTES + copies + files),
    )


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length() if number else 0


# -------------------------------------------------------------------------------- the plan of a task


PROCESSES = (1, 2, 4, 8, 16, 32, 64)


def plan(task: TrainTask) -> str:
    """A table in words: bytes of each part, and what fits on the DEVICES, on so many GPUs up to one for each sequence of
    a batch. Host memory is per node, of 8 GPUs at most. Raises BadConfiguration."""
    point = task.point
    length, batch, precision = point.sequence_length, point.batch_size, point.precision
    with torch.device("meta"):
        network = build_network(point.model)
    check_counts(network.config)
    heads = "".join(f"  {device:>22}" for device in DEVICES)
    rows = [
        f"GPUs  state/GiB  whole/GiB  logits/GiB  sequence/GiB{heads}  host, build/GiB  host, train/GiB"
    ]
    for count in (count for count in PROCESSES if count == 1 or count <= batch):
        needed = footprint(network, precision, count)
        host = host_footprint(network, count, precision if point.initial_weights else "random")
        sequence = needed.of_sequences(1, length, recompute=False)
        fits = [
            in_words(fit(needed, length, memory), -(-batch // count))
            for memory in DEVICES.values()
        ]
        rows.append(
            f"{count:>4}  {_gib(needed.state):>9}  {_gib(needed.whole):>9}  {_gib(needed.head):>10}  "
            f"{_gib(sequence):>12}{''.join(f'  {words:>22}' for words in fits)}  {_gib(host.build):>15}  "
            f"{_gib(host.train):>15}"
        )
    return "\n".join(rows)


def in_words(found: Fit | None, share: int) -> str:
    """Such as "4 at once" or "1 at once, recomputed"; `share`: sequences of a step per device."""
    if found is None:
        return "does not fit"
    twice = ", recomputed" if found.recompute else ""
    return f"{micro_batch(share, found.sequences)} at once{twice}"


def micro_batch(share: int, fitting: int) -> int:
    """Sequences at once, of a device's `share` of a batch, where `fitting` fit: all or equal parts, for another shape
    is compiled anew; but as many as fit, with a smaller rest, where equal parts would be less than half of that."""
    most = min(fitting, share)
    equal = next(part for part in range(most, 0, -1) if share % part == 0)
    return equal if 2 * equal >= most else most


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f}"
