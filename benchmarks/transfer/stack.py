"""Several runs of one size at once in one process: weights stacked, matrix products batched, one learning rate each.

All runs of a stack read the same sequences in the same order, as the trainer's points do. A run steps after as many sequences as
its batch size. All its weights are one row of a tensor; its optimizer is the trainer's own, on that row.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from isoloss_contract.records import PointConfig
from isoloss_trainer.learner import AVERAGING_SHARE, adamw
from isoloss_trainer.model import build_network

Tensors = dict[str, torch.Tensor]

NORM_EPSILON, ROPE_BASE = 1e-6, 10_000.0
"""Defaults of transformers' Llama."""
CLIP_EPSILON = 1e-6
"""Of torch's clip_grad_norm_."""
CALLS_BEFORE_RECORDING = 3
"""Compiled and tuned by then; recording allocates nothing."""


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
    """Runs of `points`, all from `weights`; each batch size divides the next one's."""

    def __init__(
        self, shape: Shape, points: Sequence[PointConfig], weights: Tensors, device: str
    ) -> None:
        """Precision is the points': weights are float32, `bf16` computes all but the loss in bfloat16.

        Raises ValueError for batch sizes that do not divide the next one.
        """
        if any(after.batch_size % p.batch_size for p, after in pairwise(points)):
            raise ValueError("each batch size must divide the next one's")
        self.shape, self.points, self.tokens = shape, tuple(points), 0
        self._device, self._half = device, points[0].precision == "bf16"
        row = torch.cat([weight.flatten() for weight in weights.values()]).to(device)
        self._rows = row.repeat(len(points), 1)
        self._averaged, self._gradients = self._rows.clone(), torch.zeros_like(self._rows)
        self._parts = [(name, weight.shape) for name, weight in weights.items()]
        self._weights = self._named(self._rows)
        for weight in self._weights.values():
            weight.requires_grad_()
        self._optimizers = [
            adamw([torch.nn.Parameter(row)], p) for row, p in zip(self._rows, points, strict=True)
        ]
        self._rates = torch.tensor([p.learning_rate for p in points], device=device)
        self._scheduled = torch.zeros_like(self._rates)
        for run, optimizer in enumerate(self._optimizers):
            group = optimizer.param_groups[0]
            group["params"][0].grad = self._gradients[run]
            group |= {"lr": self._scheduled[run], "capturable": device != "cpu"}
        self._batch_tokens = torch.tensor(
            [p.batch_size * shape.length for p in points], device=device, dtype=torch.float64
        )
        self._read = torch.zeros((), device=device, dtype=torch.float64)
        self._factor = torch.ones((), device=device)
        self._batch = torch.empty(0, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._calls: Counter[int] = Counter()

    @property
    def averaged(self) -> Tensors:
        """Averaged weights, stacked."""
        return self._named(self._averaged)

    @property
    def weights(self) -> Tensors:
        """Stacked."""
        return {name: weight.detach() for name, weight in self._weights.items()}

    def _named(self, rows: torch.Tensor) -> Tensors:
        sizes = [shape.numel() for _, shape in self._parts]
        return {
            name: part.view(len(rows), *shape)
            for (name, shape), part in zip(
                self._parts, torch.split(rows, sizes, dim=1), strict=True
            )
        }

    def at_once(self, tokens: int) -> int:
        """Sequences that all runs read between two possible steps, of at most `tokens` over all runs if there are two."""
        common = self.points[0].batch_size
        most = max(1, tokens // (len(self.points) * self.shape.length))
        return next(n for n in range(min(common, most), 0, -1) if common % n == 0)

    def learn(self, batch: torch.Tensor, factor: float = 1.0) -> None:
        """Read `batch` [n, S + 1]; step the runs whose batch is complete, at `factor` of their schedule.

        On a GPU the kernels of a call are recorded, for each number of runs that step, and played again: small models
        would wait for Python.
        """
        if batch.shape != self._batch.shape:
            self._batch = torch.zeros_like(batch, device=self._device)
            self._graphs.clear()
            self._calls.clear()
        self._batch.copy_(batch)
        self._factor.fill_(factor)
        self.tokens += batch[:, 1:].numel()
        stepping = sum(self.tokens % (p.batch_size * self.shape.length) == 0 for p in self.points)
        if stepping not in self._graphs:
            self._calls[stepping] += 1
            if self._device == "cpu" or self._calls[stepping] <= CALLS_BEFORE_RECORDING:
                self._learn(stepping)
                return
            memory = next((graph.pool() for graph in self._graphs.values()), None)
            self._graphs[stepping] = graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory):
                self._learn(stepping)
        self._graphs[stepping].replay()

    def _learn(self, stepping: int) -> None:
        size = self._batch[:, 1:].numel()
        losses = self._losses(self._weights, self._batch)
        found = torch.autograd.grad(
            (losses / self._batch_tokens).sum(), list(self._weights.values())
        )
        for gradients, part in zip(self._named(self._gradients).values(), found, strict=True):
            gradients.add_(part)
        self._read += size
        if stepping:
            self._step(stepping)

    @torch.no_grad()
    def _step(self, stepping: int) -> None:
        """Of the first runs, which have the smallest batch sizes."""
        optimizer = self.points[0].optimizer
        gradients = self._gradients[:stepping]
        norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
        gradients *= (optimizer.gradient_clip / (norms + CLIP_EPSILON)).clamp(max=1.0)
        warm = (self._read / max(1, optimizer.warmup_tokens)).clamp(max=1.0)
        self._scheduled.copy_(self._rates * self._factor * warm)
        for each in self._optimizers[:stepping]:
            each.step()
        constant = AVERAGING_SHARE * self._read
        shares = -torch.expm1(-self._batch_tokens[:stepping, None] / constant)
        self._averaged[:stepping].lerp_(self._rows[:stepping], shares.float())
        gradients.zero_()

    def _losses(
        self, weights: Tensors, batch: torch.Tensor, *, compiled: bool = True
    ) -> torch.Tensor:
        functions = _compiled() if compiled and self._device != "cpu" else (_layer, _last)
        return summed_losses(weights, batch, self.shape, functions, half=self._half)

    @torch.no_grad()
    def evaluate(self, sequences: torch.Tensor, at_once: int, *, averaged: bool) -> torch.Tensor:
        """Mean loss of `sequences` [n, S + 1] by run, nats per token, `at_once` sequences at a time."""
        weights = self.averaged if averaged else self.weights
        # Not compiled: it is seldom, and has shapes of its own.
        parts = [
            self._losses(weights, part, compiled=False) for part in torch.split(sequences, at_once)
        ]
        return torch.stack(parts).double().sum(0) / sequences[:, 1:].numel()

    def _state(self, run: int) -> dict[str, torch.Tensor]:
        optimizer = self._optimizers[run]
        moments = optimizer.state[optimizer.param_groups[0]["params"][0]]
        return {
            "weights": self._rows[run],
            "averaged": self._averaged[run],
            "gradients": self._gradients[run],
            **moments,
        }

    def state(self, run: int) -> dict[str, Any]:
        """All that continuing a run needs, in the host's memory."""
        tensors = {name: tensor.cpu().clone() for name, tensor in self._state(run).items()}
        return {"tokens": self.tokens, **tensors}

    @torch.no_grad()
    def restore(self, run: int, state: dict[str, Any]) -> None:
        """Continue a run from its `state`; all runs must be at the same tokens before they learn."""
        self.tokens = state["tokens"]
        self._read.fill_(self.tokens)
        for name, tensor in self._state(run).items():
            tensor.copy_(state[name])


def summed_losses(
    weights: Tensors,
    batch: torch.Tensor,
    shape: Shape,
    functions: tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]],
    *,
    half: bool,
) -> torch.Tensor:
    """Summed loss of `batch` [n, S + 1] by each of E stacked models, nats, float32 [E]; `functions` are _layer and _last."""
    layer, last = functions
    inputs, targets = batch[:, :-1].flatten(), batch[:, 1:].flatten()
    x = weights["model.embed_tokens.weight"].index_select(1, inputs)
    x = x.to(torch.bfloat16) if half else x
    turn = _rotation(shape, x)
    for number in range(shape.layers):
        name = f"model.layers.{number}."
        parts = {key.removeprefix(name): w for key, w in weights.items() if key.startswith(name)}
        x = layer(x, parts, turn, shape)
    return last(x, weights["model.norm.weight"], weights["lm_head.weight"], targets)


@cache
def _compiled() -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """One layer and the head: all layers of a size share the code of one."""
    torch._dynamo.config.recompile_limit = 64  # a study has more than eight shapes
    return torch.compile(_layer, dynamic=False), torch.compile(_last, dynamic=False)


def _layer(
    x: torch.Tensor, parts: Tensors, turn: tuple[torch.Tensor, torch.Tensor], shape: Shape
) -> torch.Tensor:
    runs, tokens, _ = x.shape
    y = _norm(x, parts["input_layernorm.weight"])
    q, k, v = (
        _product(y, parts[f"self_attn.{part}_proj.weight"])
        .view(runs * tokens // shape.length, shape.length, shape.heads, -1)
        .transpose(1, 2)
        for part in "qkv"
    )
    y = functional.scaled_dot_product_attention(
        _rotated(q, turn), _rotated(k, turn), v, is_causal=True
    )
    y = y.transpose(1, 2).reshape(x.shape)
    x = x + _product(y, parts["self_attn.o_proj.weight"])
    y = _norm(x, parts["post_attention_layernorm.weight"])
    gate = functional.silu(_product(y, parts["mlp.gate_proj.weight"]))
    y = gate * _product(y, parts["mlp.up_proj.weight"])
    return x + _product(y, parts["mlp.down_proj.weight"])


def _last(
    x: torch.Tensor, norm: torch.Tensor, head: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Summed losses [E] of the last layer's output; in float32."""
    logits = _product(_norm(x, norm).float(), head)
    runs = len(logits)
    losses = functional.cross_entropy(
        logits.flatten(0, 1), targets.expand(runs, -1).flatten(), reduction="none"
    )
    return losses.view(runs, -1).sum(-1)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[E, tokens, in] by [E, out, in] in the type of the first: [E, tokens, out]."""
    return torch.bmm(x, weight.to(x.dtype).transpose(1, 2))


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    found = functional.rms_norm(x.float(), x.shape[-1:], eps=NORM_EPSILON).to(x.dtype)
    return found * weight.to(x.dtype)[:, None]


def _rotation(shape: Shape, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [S, width of a head]."""
    size = shape.width // shape.heads
    powers = torch.arange(0, size, 2, device=like.device, dtype=torch.float32) / size
    angles = torch.arange(shape.length, device=like.device)[:, None] / ROPE_BASE**powers
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotated(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat([-high, low], dim=-1) * turn[1]
