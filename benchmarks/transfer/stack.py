"""Several runs of one size at once in one process: weights stacked, matrix products batched, one learning rate each.

All runs of a stack read the same sequences in the same order, as the trainer's points do. A run steps after as many sequences as
its batch size; its optimizer, clipping and average are the trainer's own functions, on its slices of the stacked tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch.nn import functional

from isoloss_contract.records import PointConfig
from isoloss_trainer.learner import adamw, clip, take_into_average
from isoloss_trainer.model import build_network

Tensors = dict[str, torch.Tensor]

NORM_EPSILON, ROPE_BASE = 1e-6, 10_000.0
"""Defaults of transformers' Llama."""


@dataclass(frozen=True)
class Shape:
    """A Llama with as many key-value heads as heads, and a head of its own."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    length: int
    """Of a sequence, tokens."""

    @property
    def model(self) -> dict[str, Any]:
        """The transformers config."""
        return {
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "max_position_embeddings": self.length,
            "tie_word_embeddings": False,
        }

    @property
    def inner(self) -> int:
        """Width of the feed-forward layers."""
        return self.width * 11 // 4

    @property
    def body(self) -> int:
        """Parameters without embedding and head."""
        return self.layers * (4 * self.width**2 + 3 * self.width * self.inner)

    @property
    def params(self) -> int:
        """As laws count them: body and head."""
        return self.body + self.vocabulary * self.width


def initial(shape: Shape, seed: int = 0) -> Tensors:
    """The weights that the trainer begins with."""
    network = build_network(shape.model, seed=seed)
    return {name: weight.detach() for name, weight in network.named_parameters()}


class Stack:
    """Runs of `points`, all from `weights`."""

    def __init__(
        self, shape: Shape, points: Sequence[PointConfig], weights: Tensors, device: str
    ) -> None:
        """Precision is the points': weights are float32, `bf16` computes all but the loss in bfloat16."""
        self.shape, self.points, self.tokens = shape, tuple(points), 0
        count, self._half = len(points), points[0].precision == "bf16"
        self.weights = {
            name: weight.to(device).expand(count, *weight.shape).clone().requires_grad_()
            for name, weight in weights.items()
        }
        self.averaged = {name: w.detach().clone() for name, w in self.weights.items()}
        for weight in self.weights.values():
            weight.grad = torch.zeros_like(weight)
        self._runs = [self._slices(self.weights, k) for k in range(count)]
        self._averages = [self._slices(self.averaged, k) for k in range(count)]
        self._optimizers = [adamw(run, p) for run, p in zip(self._runs, points, strict=True)]
        self._loss = summed_losses
        if device != "cpu":
            # Eight shapes of one function are kept, over all its torch.compile calls: a study has more.
            torch._dynamo.config.recompile_limit = 64
            self._loss = torch.compile(summed_losses, dynamic=False)

    def _slices(self, tensors: Tensors, run: int) -> list[torch.nn.Parameter]:
        found = []
        for tensor in tensors.values():
            part = torch.nn.Parameter(tensor.detach()[run])
            part.grad = None if tensor.grad is None else tensor.grad[run]
            found.append(part)
        return found

    def at_once(self, tokens: int) -> int:
        """Sequences that all runs read between two possible steps, of at most `tokens` over all runs if there are two."""
        common = gcd(*(point.batch_size for point in self.points))
        most = max(1, tokens // (len(self.points) * self.shape.length))
        return next(n for n in range(min(common, most), 0, -1) if common % n == 0)

    def learn(self, batch: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        """Read `batch` [n, S + 1]; step the runs whose batch is complete, at `factor` of their schedule.

        Mean losses [runs], nats per token, before the step.
        """
        size = batch[:, 1:].numel()
        losses = self._loss(self.computing(self.weights), batch, self.shape) / size
        scale = torch.tensor([len(batch) / p.batch_size for p in self.points]).to(losses.device)
        (losses * scale).sum().backward()  # type: ignore[no-untyped-call]
        self.tokens += size
        for run, point in enumerate(self.points):
            batch_tokens = point.batch_size * self.shape.length
            if self.tokens % batch_tokens == 0:
                self._step(run, point, batch_tokens, factor)
        return losses.detach()

    def _step(self, run: int, point: PointConfig, batch_tokens: int, factor: float) -> None:
        weights, optimizer = self._runs[run], self._optimizers[run]
        clip(weights, point.optimizer.gradient_clip)
        warmup = point.optimizer.warmup_tokens
        warm = min(1.0, self.tokens / warmup) if warmup else 1.0
        optimizer.param_groups[0]["lr"] = factor * warm * point.learning_rate
        optimizer.step()
        take_into_average(self._averages[run], weights, self.tokens, batch_tokens)
        for weight in weights:
            assert weight.grad is not None
            weight.grad.zero_()

    def computing(self, weights: Mapping[str, torch.Tensor]) -> Tensors:
        """In the type that computes; the head stays float32."""
        if not self._half:
            return dict(weights)
        return {
            name: weight if name == "lm_head.weight" else weight.to(torch.bfloat16)
            for name, weight in weights.items()
        }

    @torch.no_grad()
    def evaluate(self, sequences: torch.Tensor, at_once: int, *, averaged: bool) -> torch.Tensor:
        """Mean loss of `sequences` [n, S + 1] by run, nats per token, `at_once` sequences at a time."""
        weights = self.computing(self.averaged if averaged else self.weights)
        parts = [self._loss(weights, part, self.shape) for part in torch.split(sequences, at_once)]
        return torch.stack(parts).double().sum(0) / sequences[:, 1:].numel()

    def state(self, run: int) -> dict[str, Any]:
        """All that continuing a run needs, in the host's memory."""
        parts = self._runs[run]
        return {
            "tokens": self.tokens,
            "weights": [weight.detach().cpu().clone() for weight in parts],
            "gradients": [
                weight.grad.cpu().clone() for weight in parts if weight.grad is not None
            ],
            "averaged": [weight.detach().cpu().clone() for weight in self._averages[run]],
            "optimizer": _copied(self._optimizers[run].state_dict()),
        }

    @torch.no_grad()
    def restore(self, run: int, state: dict[str, Any]) -> None:
        """Continue a run from its `state`; all runs must be at the same tokens before they learn."""
        self.tokens = state["tokens"]
        for part, weight, gradient in zip(
            self._runs[run], state["weights"], state["gradients"], strict=True
        ):
            assert part.grad is not None
            part.copy_(weight)
            part.grad.copy_(gradient)
        for average, found in zip(self._averages[run], state["averaged"], strict=True):
            average.copy_(found)
        self._optimizers[run].load_state_dict(state["optimizer"])


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state_dict has its own tensors, and loading it takes them as they are."""
    moments = {
        number: {name: tensor.cpu().clone() for name, tensor in each.items()}
        for number, each in state["state"].items()
    }
    return {**state, "state": moments}


def summed_losses(weights: Tensors, batch: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Summed loss of `batch` [n, S + 1] by each of E stacked models, nats, float32 [E]."""
    inputs, targets = batch[:, :-1], batch[:, 1:]
    table = weights["model.embed_tokens.weight"]
    runs, (n, length) = table.shape[0], inputs.shape
    first = torch.arange(runs, device=table.device)[:, None] * shape.vocabulary
    x = functional.embedding(first + inputs.reshape(1, -1), table.flatten(0, 1))
    turn = _rotation(shape, x)
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        y = _norm(x, weights[name + "input_layernorm.weight"])
        q, k, v = (
            _product(y, weights[f"{name}self_attn.{part}_proj.weight"])
            .view(runs * n, length, shape.heads, -1)
            .transpose(1, 2)
            for part in "qkv"
        )
        y = functional.scaled_dot_product_attention(
            _turned(q, turn), _turned(k, turn), v, is_causal=True
        )
        y = y.transpose(1, 2).reshape(x.shape)
        x = x + _product(y, weights[name + "self_attn.o_proj.weight"])
        y = _norm(x, weights[name + "post_attention_layernorm.weight"])
        gate = functional.silu(_product(y, weights[name + "mlp.gate_proj.weight"]))
        y = gate * _product(y, weights[name + "mlp.up_proj.weight"])
        x = x + _product(y, weights[name + "mlp.down_proj.weight"])
    x = _norm(x, weights["model.norm.weight"]).float()
    logits = _product(x, weights["lm_head.weight"])
    losses = functional.cross_entropy(
        logits.flatten(0, 1), targets.reshape(1, -1).expand(runs, -1).flatten(), reduction="none"
    )
    return losses.view(runs, -1).sum(-1)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[E, tokens, in] by [E, out, in]: [E, tokens, out]."""
    return torch.bmm(x, weight.transpose(1, 2))


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    found = functional.rms_norm(x.float(), x.shape[-1:], eps=NORM_EPSILON).to(x.dtype)
    return found * weight[:, None]


def _rotation(shape: Shape, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [S, width of a head]."""
    size = shape.width // shape.heads
    powers = torch.arange(0, size, 2, device=like.device, dtype=torch.float32) / size
    angles = torch.arange(shape.length, device=like.device)[:, None] / ROPE_BASE**powers
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _turned(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat([-high, low], dim=-1) * turn[1]
