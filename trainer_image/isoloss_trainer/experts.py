"""Experts of a mixture, for transformers models: computed as grouped products, and kept evenly loaded.

Copying each token's state to the experts that it goes to, and summing what they return, are each other's
transposes: with the order of the experts and its inverse at hand both are gathers, forward and backward. Left to
torch, the backward pass of a gather adds up rows by their numbers, which on an accelerator sorts them once more or
takes turns at every element, and gives other bits each time.

transformers computes routing but does not balance it: DeepSeek-V3's correction bias stays zero there.
Models with that bias get it moved a little per step towards underloaded experts (Wang et al.
2408.15664), and more the more uneven the load is: at their fixed rate, a run of few large steps would
never be balanced while one of many small steps is, and the batch size would be blamed for it. Others
get a balance loss per sequence (DeepSeek-V3, eq. 17-20), which unlike a loss per micro-batch does not
depend on how a batch is split.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# --------------------------------------------------------------------------------- grouped products


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
    if getattr(experts, "is_transposed", False):
        first, second = first.transpose(-2, -1), second.transpose(-2, -1)
    inner = _FirstProduct.apply(states.to(first.dtype), first, order, inverse, ends, active)
    # Not after the second product, which would have to be kept for it, and is wider.
    share = _Permuted.apply(weights.flatten(), order, inverse)
    inner = (experts._apply_gate(inner) * share[:, None]).to(second.dtype)
    found: torch.Tensor = _Summed.apply(_product(inner, second, ends), order, inverse, active)
    return found.to(states.dtype)


# ---------------------------------------------------------------- what transformers computes needlessly


ROUTERS = ("DeepseekV3TopkRouter", "Glm4MoeTopkRouter")
"""Those that choose among groups of experts, and then among the experts in them."""


def compute_sparsely(network: Any) -> None:
    """Have routers with one group of experts sort nothing for it, and the mixtures of Llama 4 compute each token's chosen
    experts: transformers computes all of them for every token, with inputs that are zero."""
    is_old = torch.cuda.is_available() and torch.cuda.get_device_capability() < FIRST_CAPABILITY
    for module in network.modules():
        if "forward" in vars(module):
            continue  # accelerate's, which fetches weights
        name, parts = type(module).__name__, []
        if name in ROUTERS and getattr(module, "num_group", 0) == 1:
            parts = [module]
        elif name == "Llama4TextMoe" and not is_old:
            parts = [module.router, module.experts, module]
        for part in parts:
            kind: Any = type(part)
            part.__class__ = _sparse(kind)


@functools.cache
def _sparse(theirs: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """A class, not methods of each: layers whose parts have methods of their own are compiled one by one."""
    own: dict[str, dict[str, Any]] = {
        **{name: {"forward": _route_within_one_group} for name in ROUTERS},
        "Llama4Router": {"forward": _routed},
        "Llama4TextExperts": {"is_transposed": True, "_apply_gate": _gated},
        "Llama4TextMoe": {"forward": _mixed},
    }
    return type(f"Sparse{theirs.__name__}", (theirs,), own[theirs.__name__])


def _route_within_one_group(router: Any, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Logits, and the chosen experts' weights and numbers, of DeepSeek-V3's routing (2412.19437, eq. 12-16) if there is
    nothing to choose among groups: transformers' own sorts experts three times for it."""
    logits = torch.nn.functional.linear(states.flatten(0, -2).float(), router.weight.float())
    scores = logits.sigmoid()
    best = torch.topk(scores + router.e_score_correction_bias, router.top_k, sorted=False)
    weights = scores.gather(1, best.indices)
    if router.norm_topk_prob:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return logits, weights * router.routed_scaling_factor, best.indices


def _routed(router: Any, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Logits, and the chosen experts' weights and numbers."""
    logits = torch.nn.functional.linear(states, router.weight)
    best = torch.topk(logits, router.top_k, dim=-1)
    return logits, best.values.float().sigmoid().to(states.dtype), best.indices


def _gated(experts: Any, inner: torch.Tensor) -> torch.Tensor:
    gate, up = inner.chunk(2, dim=-1)
    return up * experts.act_fn(gate)  # type: ignore[no-any-return]


def _mixed(mixture: Any, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The shared expert and the chosen ones, whose inputs are weighted and not their outputs."""
    states = states.reshape(-1, mixture.hidden_dim)
    logits, weights, chosen = mixture.router(states)
    active = chosen.shape[-1]
    copies = states.repeat_interleave(active, 0) * weights.reshape(-1, 1)
    ones = torch.ones_like(weights).view(-1, 1)
    found = grouped_experts(mixture.experts, copies, chosen.reshape(-1, 1), ones)
    return mixture.shared_expert(states) + found.view(-1, active, found.shape[-1]).sum(1), logits


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


# ------------------------------------------------------------------------------------- an even load


BIAS_RATE = 1e-3
"""Added to or subtracted from an expert's routing score after each step under an even load …"""
MAX_BIAS_FACTOR = 10.0
"""… and at most this many times as much under an uneven load."""
BIAS_NAME = "e_score_correction_bias"


class ExpertBalance:
    """Counts the tokens of every router's experts during training; does nothing for dense models."""

    def __init__(self, network: Any, sequence_length: int) -> None:
        self._length = sequence_length
        self._routers = routers_of(network)
        self._loss_weight = float(getattr(network.config, "router_aux_loss_coef", 0.0) or 0.0)
        self.counts = [
            torch.zeros(router.num_experts, dtype=torch.float32, device=router.weight.device)
            for router in self._routers.values()
        ]
        """Tokens sent to each expert in the current step, per layer."""
        self._loads = [torch.zeros_like(count) for count in self.counts]
        self._is_counting = True
        self.averaged_biases = {
            averaged_name(name): bias.clone() for name, bias in self.biases.items()
        }
        """What the averaged weights route by, by name."""
        # The same for every router, which has what differs: layers that differ are compiled one by one.
        hook = self._note
        for router, count in zip(self._routers.values(), self.counts, strict=True):
            router.tokens_by_expert, router.penalty = count, None
            router.register_forward_hook(hook)

    def __bool__(self) -> bool:
        return bool(self._routers)

    @property
    def biases(self) -> dict[str, torch.Tensor]:
        """The correction biases by name, part of the training state; empty if there are none."""
        return biases_of(self._routers)

    @property
    def has_loss(self) -> bool:
        """Whether balance is a loss in addition to the model's, kept while its layers compute."""
        return bool(self._loss_weight) and len(self.biases) < len(self._routers)

    def _note(self, router: Any, _inputs: Any, outputs: Any) -> None:
        """A router's forward hook, part of its layer's graph."""
        if not router.training:
            return
        logits, _weights, chosen = outputs
        if not hasattr(router, BIAS_NAME) and self._loss_weight:
            # Also in a layer that is computed again: its backward pass needs what this keeps.
            penalty = _sequence_penalty(logits, chosen, self._length)
            if self._is_counting:
                router.penalty = penalty
        if not self._is_counting:
            return
        # Not bincount, which waits for the device to learn the size of its result; nor scatter_add, for which tokens
        # queue at few experts.
        every = torch.arange(router.num_experts, device=chosen.device)
        router.tokens_by_expert.add_((chosen.reshape(-1, 1) == every).sum(0))

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What routers decide in this block does not count: layers are computed for the second time in a backward
        pass, or on nothing."""
        self._is_counting = False
        try:
            yield
        finally:
            self._is_counting = True

    def take_penalty(self, scale: float) -> torch.Tensor | None:
        """The balance loss of the last micro-batch, mean over layers, weighted by `scale` per sequence."""
        penalties = [
            router.penalty for router in self._routers.values() if router.penalty is not None
        ]
        self._forget_penalties()
        if not penalties:
            return None
        return torch.stack(penalties).mean(0).sum() * (scale * self._loss_weight)

    def _forget_penalties(self) -> None:
        for router in self._routers.values():
            router.penalty = None

    def discard_step(self) -> None:
        """Forget the counts of a step that was begun and not finished."""
        self._forget_penalties()
        for count in self.counts:
            count.zero_()

    @torch.no_grad()
    def finish_step(self) -> None:
        """Move the biases and add up the load; call once the counts of all processes are summed."""
        for router, count, load in zip(
            self._routers.values(), self.counts, self._loads, strict=True
        ):
            if hasattr(router, BIAS_NAME):
                unevenness = count.max() / count.mean().clamp(min=1e-9)
                direction = torch.sign(count.mean() - count)
                change = direction * unevenness.clamp(max=MAX_BIAS_FACTOR)
                getattr(router, BIAS_NAME).add_(change, alpha=BIAS_RATE)
            load += count
            count.zero_()

    def take_load(self) -> float | None:
        """Largest over mean load of an expert since the last call, in the worst layer; 1 is even."""
        if not self._routers:
            return None
        worst = max(float(load.max() / load.mean().clamp(min=1e-9)) for load in self._loads)
        for load in self._loads:
            load.zero_()
        return worst


def averaged_name(name: str) -> str:
    """Name of the average of the bias `name`."""
    return f"averaged.{name}"


def routers_of(network: Any) -> dict[str, Any]:
    """By name, those that know how many experts they choose from."""
    return {
        name: module
        for name, module in network.named_modules()
        if type(module).__name__.endswith("Router") and hasattr(module, "num_experts")
    }


def biases_of(routers: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The correction biases of `routers` by name, not copied."""
    return {
        f"{name}.{BIAS_NAME}": getattr(router, BIAS_NAME)
        for name, router in routers.items()
        if hasattr(router, BIAS_NAME)
    }


def _sequence_penalty(logits: torch.Tensor, chosen: torch.Tensor, length: int) -> torch.Tensor:
    """Per sequence: experts x sum over experts of share of tokens x mean probability; 1 is even."""
    experts, active = logits.shape[-1], chosen.shape[-1]
    probability = torch.softmax(logits.float(), -1).view(-1, length, experts).mean(1)
    picks = chosen.view(-1, length * active)
    share = torch.zeros_like(probability).scatter_add_(
        1, picks, torch.full_like(picks, 1.0 / (length * active), dtype=torch.float32)
    )
    return experts * (share * probability).sum(-1)
