"""What training a model takes of an accelerator's memory and of the host's, part by part, counted from its config.

Weights, gradients and optimizer state are counted exactly, and so is the output head. Activations are
those that a fused forward pass keeps for the backward pass: the operands of the matrix products and of
attention. What the compiler keeps beyond or below that, `make bench-trainer ARGS=--dry` counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from isoloss_contract.memory import (
    FILE_BYTES,
    GPUS_OF_NODE,
    GRADIENT_BYTES,
    PROCESS_BYTES,
    STATE_BYTES,
    USABLE_SHARE,
)
from isoloss_trainer.loss import chunk_tokens
from isoloss_trainer.model import layers_of

ACCELERATOR_TOKENS = 131_072
"""Tokens at once that saturate an accelerator: more gain nothing."""
Precision = Literal["bf16", "float32"]


@dataclass(frozen=True)
class Footprint:
    """Bytes on each device."""

    state: int
    """This process's part of weights, average, moments and gradients."""
    whole: int
    """Weights that are put together to compute, and their gradients on the way to where they are summed."""
    head: int
    """One chunk of logits with its gradient, and the gradients of the output matrix in the making."""
    token: int
    """Activations per token, kept from the forward to the backward pass."""
    recomputed_token: int
    """Likewise if layers keep their input alone and are computed a second time …"""
    layer_token: int
    """… of which one at a time has its activations, per token."""

    def of_sequences(self, sequences: int, length: int, *, recompute: bool) -> int:
        """Activations of a micro-batch."""
        per_token = self.recomputed_token + self.layer_token if recompute else self.token
        return sequences * length * per_token

    @property
    def fixed(self) -> int:
        """All but activations."""
        return self.state + self.whole + self.head


class Fit(NamedTuple):
    """How a model fits: sequences at once, and whether layers must be computed twice."""

    sequences: int
    recompute: bool


def footprint(network: Any, precision: Precision, processes: int = 1) -> Footprint:
    """Memory for training `network` (transformers, also on the meta device) in `processes` processes."""
    config, number = network.config, sum(p.numel() for p in network.parameters())
    layers, size = config.num_hidden_layers, 2 if precision == "bf16" else 4
    numbers = layer_numbers(config)
    statistics = 4 * config.num_attention_heads
    # The embedding's output, the last norm's and its gradient.
    ends = 3 * size * config.hidden_size
    return Footprint(
        state=(STATE_BYTES + GRADIENT_BYTES) * number // processes,
        whole=whole_bytes(network, precision, processes),
        head=head_bytes(network.get_output_embeddings().weight.shape, size),
        token=size * sum(numbers) + layers * statistics + ends,
        recomputed_token=layers * size * config.hidden_size + ends,
        layer_token=size * max(numbers) + statistics,
    )


def whole_bytes(network: Any, precision: Precision, processes: int) -> int:
    """Bytes of weights that are in no layer, for as long as a micro-batch computes, and of the largest layer and the
    next; of the gradients of both, and of their float32 copies while they are summed. 0 if nothing is sharded."""
    if processes == 1 and precision == "float32":
        return 0
    size = 2 if precision == "bf16" else 4
    layers = [sum(p.numel() for p in layer.parameters()) for layer in layers_of(network)]
    largest = max(layers, default=0)
    others: int = sum(p.numel() for p in network.parameters()) - sum(layers)
    return (size + size + 4) * others + (2 * size + size + 4) * largest


def head_bytes(shape: tuple[int, ...], size: int) -> int:
    """Bytes of the loss with an output matrix of `shape` in a type of `size` bytes (loss.py)."""
    import torch

    vocabulary, width = shape
    chunk = chunk_tokens(vocabulary, torch.device("cuda"))
    # The weight's gradient: a chunk's, the float32 sum, and its copy in the weight's type.
    return chunk * vocabulary * (4 + size) + vocabulary * width * (4 + 2 * size)


def layer_numbers(config: Any) -> list[int]:
    """Numbers per token that each layer keeps."""
    attention = (
        _latent_attention(config) if getattr(config, "kv_lora_rank", 0) else _attention(config)
    )
    # Inputs of both norms and of what follows them.
    own = 4 * config.hidden_size + attention
    return [own + inner for inner in _feed_forwards(config)]


def _attention(config: Any) -> int:
    """Queries, keys, values and the output."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * heads * size + 2 * groups * size)


def _latent_attention(config: Any) -> int:
    """Low-rank queries and keys/values with their norms' inputs; per head query, key, value widened to
    their size, output as wide, the product that keys and values are cut from, and the narrow output."""
    query = config.qk_nope_head_dim + config.qk_rope_head_dim
    narrow = config.qk_nope_head_dim + 2 * config.v_head_dim
    ranks = 2 * (config.q_lora_rank or 0) + 2 * config.kv_lora_rank
    return int(ranks + config.num_attention_heads * (4 * query + narrow))


def _feed_forwards(config: Any) -> list[int]:
    """Numbers per token that each layer's feed-forward keeps. Layers that are dense among others with experts are
    known of DeepSeek-V3 alone; elsewhere all are counted with experts, which keep more."""
    layers = config.num_hidden_layers
    if not (getattr(config, "num_experts_per_tok", 0) or 0):
        return [_dense(config)] * layers
    dense = min(layers, getattr(config, "first_k_dense_replace", 0) or 0)
    return [_dense(config)] * dense + [_with_experts(config)] * (layers - dense)


def _dense(config: Any) -> int:
    """Gate, up and their product."""
    return int(3 * (getattr(config, "intermediate_size", None) or 4 * config.hidden_size))


def _with_experts(config: Any) -> int:
    """For each expert that a token is sent to: its copy of the input, gate, up and their product, and the output
    before it is weighted; shared experts count as dense layers; and the router's input in float32."""
    own = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    shared = own * (getattr(config, "n_shared_experts", 0) or 0)
    each = 2 * config.hidden_size + 3 * own
    return int(config.num_experts_per_tok * each + 3 * shared + 2 * config.hidden_size)


def fit(needed: Footprint, length: int, device_bytes: int) -> Fit | None:
    """On a device of `device_bytes` with nothing else on it; None if not even one sequence fits."""
    return fit_beside_state(needed, length, int(USABLE_SHARE * device_bytes) - needed.state)


def fit_beside_state(needed: Footprint, length: int, free: int) -> Fit | None:
    """In the `free` bytes left by the state. Layers are computed twice only if
    a single sequence would not fit otherwise: that takes a third longer."""
    for recompute in (False, True):
        sequences = sequences_beside_state(needed, length, free, recompute=recompute)
        if sequences:
            return Fit(sequences, recompute)
    return None


def sequences_beside_state(needed: Footprint, length: int, free: int, *, recompute: bool) -> int:
    """How many at once, with layers computed twice or not; 0 if not even one fits."""
    one = needed.of_sequences(1, length, recompute=recompute)
    return max(
        0, min(max(1, ACCELERATOR_TOKENS // length), (free - needed.whole - needed.head) // one)
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
