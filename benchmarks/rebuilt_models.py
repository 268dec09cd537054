"""The models of two hand-tuned training codes, rebuilt in plain torch as rivals for the trainer.

`DecoderRival` is in the manner of torchtitan's Llama and DeepSeek-V3: one compiled graph per layer, attention
without a mask, experts in grouped matrix products. `SpeedrunRival` is in the manner of nanochat's GPT:
norms without gains, normalised queries and keys, squared ReLU, capped logits, one compiled graph for everything.
Weights are float32 and cast where they multiply, which is what mixed precision comes to in both. Both have
as many matrix parameters as the transformers model of the same config, so that a token costs as many FLOPs.
No line is taken from either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import (
    cross_entropy,
    grouped_mm,
    linear,
    relu,
    rms_norm,
    scaled_dot_product_attention,
    silu,
)

Config = Mapping[str, Any]
LOGIT_CAP = 15.0
WEIGHT_SCALE = 0.02


class Rotation(nn.Module):
    """Rotary position embedding of [batch, S, heads, size] by halves, in float32."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, size: int, length: int, base: float = 10_000.0) -> None:
        super().__init__()
        frequency = base ** (-torch.arange(0, size, 2).float() / size)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cosine", angle.cos()[None, :, None], persistent=False)
        self.register_buffer("sine", angle.sin()[None, :, None], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.float().chunk(2, -1)
        turned = (
            first * self.cosine - second * self.sine,
            second * self.cosine + first * self.sine,
        )
        return torch.cat(turned, -1).to(x.dtype)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention of [batch, S, heads, size]; the output is [batch, S, heads x value size]."""
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    output = scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2).flatten(2)


class CastingLinear(nn.Linear):
    """Multiplies in the type of its input; its weight stays float32 for the optimizer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight.to(x.dtype))


class CastingNorm(nn.RMSNorm):
    """With gains, likewise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.weight is not None
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class GroupedQueryAttention(nn.Module):
    """As in Llama."""

    def __init__(self, config: Config, length: int) -> None:
        super().__init__()
        width, self.size = config["hidden_size"], config["head_dim"]
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        self.query = CastingLinear(width, heads * self.size)
        self.key = CastingLinear(width, groups * self.size)
        self.value = CastingLinear(width, groups * self.size)
        self.output = CastingLinear(heads * self.size, width)
        self.rotate = Rotation(self.size, length)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = (*x.shape[:2], -1, self.size)
        query, key = self.rotate(self.query(x).view(split)), self.rotate(self.key(x).view(split))
        output: torch.Tensor = self.output(_attend(query, key, self.value(x).view(split)))
        return output


class LatentAttention(nn.Module):
    """As in DeepSeek-V3 (MLA): queries, and keys with values, through low-rank products; values keep
    their own, smaller size."""

    def __init__(self, config: Config, length: int) -> None:
        super().__init__()
        width, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.nope, self.rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        self.narrow, self.rank = config["v_head_dim"], config["kv_lora_rank"]
        rank = config["q_lora_rank"]
        self.query_down = CastingLinear(width, rank)
        self.query_norm = CastingNorm(rank)
        self.query_up = CastingLinear(rank, self.heads * (self.nope + self.rope))
        self.down = CastingLinear(width, self.rank + self.rope)
        self.norm = CastingNorm(self.rank)
        self.up = CastingLinear(self.rank, self.heads * (self.nope + self.narrow))
        self.output = CastingLinear(self.heads * self.narrow, width)
        self.rotate = Rotation(self.rope, length)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = (*x.shape[:2], self.heads, -1)
        query = self.query_up(self.query_norm(self.query_down(x))).view(split)
        still, turned = query.split([self.nope, self.rope], -1)
        query = torch.cat([still, self.rotate(turned)], -1)
        latent, shared = self.down(x).split([self.rank, self.rope], -1)
        key, value = self.up(self.norm(latent)).view(split).split([self.nope, self.narrow], -1)
        shared = self.rotate(shared[:, :, None]).expand(*split[:3], -1)
        output: torch.Tensor = self.output(_attend(query, torch.cat([key, shared], -1), value))
        return output


class GatedFeedForward(nn.Module):
    """Three matrices with SiLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = CastingLinear(width, hidden), CastingLinear(width, hidden)
        self.down = CastingLinear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return output


class Experts(nn.Module):
    """Routed experts in grouped matrix products, and one shared expert; sigmoid scores without groups."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, hidden = config["hidden_size"], config["moe_intermediate_size"]
        number, self.chosen = config["n_routed_experts"], config["num_experts_per_tok"]
        self.router = CastingLinear(width, number)
        self.gate_and_up = nn.Parameter(torch.empty(number, width, 2 * hidden))
        self.down = nn.Parameter(torch.empty(number, hidden, width))
        self.shared = GatedFeedForward(width, hidden * config["n_shared_experts"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        scores, experts = torch.topk(self.router(tokens).float().sigmoid(), self.chosen)
        weights = (scores / scores.sum(-1, keepdim=True)).to(tokens.dtype)
        order = experts.flatten().argsort(stable=True)
        sources = order // self.chosen
        routed = self._experts(tokens[sources], experts.flatten()[order])
        routed = routed * weights.flatten()[order, None]
        total = torch.zeros_like(tokens).index_add(0, sources, routed)
        total += self.shared(tokens)
        return total.view_as(x)

    def _experts(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """`x` [tokens x chosen, width] in the order of its `experts`."""
        numbers = torch.arange(len(self.down), device=x.device)
        ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
        gate, up = grouped_mm(x, self.gate_and_up.to(x.dtype), offs=ends).chunk(2, -1)
        return grouped_mm(silu(gate) * up, self.down.to(x.dtype), offs=ends)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm with gains."""

    def __init__(self, config: Config, length: int, number: int) -> None:
        super().__init__()
        width = config["hidden_size"]
        latent = config["model_type"] == "deepseek_v3"
        self.first_norm, self.second_norm = CastingNorm(width), CastingNorm(width)
        self.attention: nn.Module = (
            LatentAttention(config, length) if latent else GroupedQueryAttention(config, length)
        )
        self.feed_forward: nn.Module = (
            Experts(config)
            if latent and number >= config["first_k_dense_replace"]
            else GatedFeedForward(width, config["intermediate_size"])
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first_norm(x))
        output: torch.Tensor = x + self.feed_forward(self.second_norm(x))
        return output


class DecoderRival(nn.Module):
    """torchtitan's manner; computes in `kind`."""

    def __init__(self, config: Config, length: int, kind: torch.dtype) -> None:
        super().__init__()
        width, vocabulary = config["hidden_size"], config["vocab_size"]
        self.kind = kind
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            DecoderLayer(config, length, number) for number in range(config["num_hidden_layers"])
        )
        self.norm, self.head = CastingNorm(width), CastingLinear(width, vocabulary)
        self.loss = _float32_loss
        _initialise(self)

    def compile_parts(self) -> None:
        """Each layer and the loss for themselves."""
        for layer in self.layers:
            layer.compile(fullgraph=True, dynamic=False)
        self.loss = torch.compile(_float32_loss, dynamic=False)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(inputs).to(self.kind)
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.head(self.norm(x)), targets)


def _float32_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, (x.shape[-1],))


class SpeedrunLayer(nn.Module):
    """Grouped-query attention with normalised queries and keys, and a squared ReLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.size = config["hidden_size"], config["head_dim"]
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        # Two matrices with as many parameters as the three of a gated layer.
        hidden = 3 * config["intermediate_size"] // 2
        self.query = CastingLinear(width, heads * self.size)
        self.key = CastingLinear(width, groups * self.size)
        self.value = CastingLinear(width, groups * self.size)
        self.output = CastingLinear(heads * self.size, width)
        self.up = CastingLinear(width, hidden)
        self.down = CastingLinear(hidden, width)

    def forward(self, x: torch.Tensor, rotate: Rotation) -> torch.Tensor:
        y = _normalised(x)
        split = (*y.shape[:2], -1, self.size)
        query = _normalised(rotate(self.query(y).view(split)))
        key = _normalised(rotate(self.key(y).view(split)))
        x = x + self.output(_attend(query, key, self.value(y).view(split)))
        output: torch.Tensor = x + self.down(relu(self.up(_normalised(x))).square())
        return output


class SpeedrunRival(nn.Module):
    """nanochat's manner, for the shape of a Llama config; computes in `kind`."""

    def __init__(self, config: Config, length: int, kind: torch.dtype) -> None:
        super().__init__()
        width, vocabulary = config["hidden_size"], config["vocab_size"]
        self.kind = kind
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            SpeedrunLayer(config) for _ in range(config["num_hidden_layers"])
        )
        self.head = CastingLinear(width, vocabulary)
        self.rotate = Rotation(config["head_dim"], length)
        _initialise(self)

    def compile_parts(self) -> None:
        """Everything as one graph."""
        self.compile(fullgraph=True, dynamic=False)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = _normalised(self.embedding(inputs).to(self.kind))
        for layer in self.layers:
            x = layer(x, self.rotate)
        logits = self.head(_normalised(x)).float()
        return _float32_loss(LOGIT_CAP * torch.tanh(logits / LOGIT_CAP), targets)


def _initialise(model: nn.Module) -> None:
    """Matrices from a normal distribution; gains of norms stay 1."""
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            nn.init.normal_(parameter, std=WEIGHT_SCALE)
