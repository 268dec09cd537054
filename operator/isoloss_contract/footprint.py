"""What training takes of an accelerator's memory, part by part, and how many sequences fit beside that.

Weights, gradients and optimizer state are counted exactly, and so is the output head. Activations are
those that a fused forward pass keeps for the backward pass: the operands of the matrix products and of
attention. On an H200, steps of the models of crds/examples took 2 to 7% less than this (docs/evidence/gpu.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from isoloss_contract.memory import GRADIENT_BYTES, STATE_BYTES, USABLE_SHARE

ACCELERATOR_TOKENS = 131_072
"""Tokens at once that saturate an accelerator: more gain nothing."""
CHUNK_BYTES = 2**32
"""Size of one chunk's float32 logits on an accelerator; their bfloat16 gradient takes half as much more. On an H200 a step
of dense-100m is 5% slower with half of it, and 1% faster with twice of it."""
Precision = Literal["bf16", "float32"]
LayerNumbers = tuple[tuple[int, int], ...]
"""So many layers that keep so many numbers per token: a config may ask for hundreds of millions."""


@dataclass(frozen=True)
class ModelShape:
    """What memory depends on of a model."""

    parameters: int
    largest_layer: int
    """Parameters of it."""
    outside_layers: int
    """Parameters of what is in no layer."""
    hidden: int
    heads: int
    vocabulary: int
    kept: LayerNumbers
    """From the forward pass to the backward pass."""
    copied: int
    """Numbers per token that the backward pass of one layer has for its experts, on top of what is kept."""

    def footprint(self, precision: Precision, processes: int = 1) -> Footprint:
        """Memory for training it in `processes` processes."""
        size = 2 if precision == "bf16" else 4
        layers, statistics = sum(count for count, _ in self.kept), 4 * self.heads
        # The embedding's output, the last norm's and its gradient.
        ends = 3 * size * self.hidden
        return Footprint(
            state=(STATE_BYTES + GRADIENT_BYTES) * self.parameters // processes,
            whole=self._whole_bytes(size) if processes > 1 or precision == "bf16" else 0,
            head=head_bytes(self.vocabulary, self.hidden, size),
            token=size * sum(count * numbers for count, numbers in self.kept)
            + layers * statistics
            + ends,
            recomputed_token=layers * size * self.hidden + ends,
            layer_token=size * (max(numbers for _, numbers in self.kept) + self.copied)
            + statistics,
        )

    def _whole_bytes(self, size: int) -> int:
        """Bytes of weights that are in no layer, for as long as a micro-batch computes, and of the largest layer and
        the next; of the gradients of both, and of their float32 copies while they are summed."""
        return (size + size + 4) * self.outside_layers + (2 * size + size + 4) * self.largest_layer


@dataclass(frozen=True)
class Footprint:
    """Bytes on each device."""

    state: int
    """This process's part of weights, average, moments and gradients."""
    whole: int
    """Weights that are put together to compute, and their gradients on the way to where they are summed; 0 if nothing is
    sharded."""
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


def head_bytes(vocabulary: int, width: int, size: int) -> int:
    """Bytes of the loss with an output matrix [vocabulary, width] in a type of `size` bytes."""
    chunk = tokens_of_chunk(vocabulary, CHUNK_BYTES)
    # The weight's gradient: a chunk's, the float32 sum, and its copy in the weight's type.
    return chunk * vocabulary * (4 + size) + vocabulary * width * (4 + 2 * size)


def tokens_of_chunk(vocabulary: int, size: int) -> int:
    """Tokens that go through the head at once: a power of two whose float32 logits take `size` bytes at most."""
    return 1 << max(7, (size // (4 * vocabulary)).bit_length() - 1)


def kept_numbers(config: Mapping[str, Any]) -> LayerNumbers:
    """Numbers per token that the layers of a transformers config keep. Which layers are dense among others with experts
    is known of those like DeepSeek-V3 and of Llama 4; elsewhere all are counted with experts, which keep more."""
    layers = config["num_hidden_layers"]
    attention = _latent_attention(config) if config.get("kv_lora_rank") else _attention(config)
    # Inputs of the norms, and of what follows the two that are not before a sum.
    own = (2 + NORMS.get(config["model_type"], 2)) * config["hidden_size"] + attention
    dense = layers
    if config["model_type"] == "llama4_text":
        dense = layers - _mixtures(config)
    elif config.get("num_experts_per_tok"):
        dense = min(layers, config.get("first_k_dense_replace") or 0)
    found = []
    if dense:
        found.append((dense, own + _dense(config)))
    if layers > dense:
        found.append((layers - dense, own + _with_experts(config)))
    return tuple(found)


NORMS: Mapping[str, int] = {"gemma3_text": 4, "glm4": 4}
"""Of a layer, where there are more than two."""
SINK_WIDTH = 8
"""By which heads with sinks are widened (isoloss_trainer/attention.py)."""


def _mixtures(config: Mapping[str, Any]) -> int:
    """Layers of Llama 4 that have experts."""
    layers, named = config["num_hidden_layers"], config.get("moe_layers")
    if named is None:
        return int(layers // (config.get("interleave_moe_layer_step") or 1))
    return sum(0 <= layer < layers for layer in set(named))


def _attention(config: Mapping[str, Any]) -> int:
    """Queries, keys, values and the output."""
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    groups = config.get("num_key_value_heads") or heads
    if config["model_type"] == "gpt_oss":
        return int(4 * heads * (size + SINK_WIDTH))
    return int(2 * heads * size + 2 * groups * size)


def _latent_attention(config: Mapping[str, Any]) -> int:
    """Low-rank queries and keys/values with their norms' inputs; per head query, key, value widened to
    their size, output as wide, the product that keys and values are cut from, and the narrow output."""
    query = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    narrow = config["qk_nope_head_dim"] + 2 * config["v_head_dim"]
    ranks = 2 * (config.get("q_lora_rank") or 0) + 2 * config["kv_lora_rank"]
    return int(ranks + config["num_attention_heads"] * (4 * query + narrow))


def _dense(config: Mapping[str, Any]) -> int:
    """Gate, up and their product."""
    width = config.get("intermediate_size_mlp") or config.get("intermediate_size")
    return int(3 * (width or 4 * config["hidden_size"]))


def _with_experts(config: Mapping[str, Any]) -> int:
    """For each expert that a token is sent to: gate, up and their product. Copies of the input are made again, and the
    output is weighted before it is computed (isoloss_trainer/experts.py). Shared experts count as dense layers; and
    the router's input in float32."""
    own = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = own * (config.get("n_shared_experts") or int(config["model_type"] == "llama4_text"))
    return int(3 * own * config["num_experts_per_tok"] + 3 * shared + 2 * config["hidden_size"])


def copied_numbers(config: Mapping[str, Any]) -> int:
    """Copies of a layer's input and of its gradient for each expert that a token is sent to; 0 of a dense model."""
    return int(2 * config["hidden_size"] * (config.get("num_experts_per_tok") or 0))


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
