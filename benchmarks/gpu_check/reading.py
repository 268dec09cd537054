"""How fast `evaluate` reads a checkpoint, against a loop as in the transformers documentation."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.bench_trainer import mfu
from benchmarks.gpu_check.steps import LENGTH, TOY_LENGTH, seconds
from benchmarks.trainer_memory import LIKES
from isoloss_operator.planning.presets import preset_config
from isoloss_trainer.evaluate import MICRO_BATCH_TOKENS
from isoloss_trainer.foreign_model import ForeignModel
from isoloss_trainer.kernels import preferred_kernels
from isoloss_trainer.model import load_model_class, model_config
from isoloss_trainer.world import World

SEQUENCES = 8
Found = dict[str, Any]


def read(device: str, *, toy: bool) -> Found:
    """Tokens per second, MFU of a forward pass and peak memory of both ways, with random weights in bfloat16; and
    how far the losses are from those of float32 logits."""
    config = preset_config("dense-tiny") if toy else LIKES["8B"]
    length = TOY_LENGTH if toy else LENGTH
    with torch.device(device):
        torch.manual_seed(0)
        network = load_model_class().from_config(model_config(config), dtype=torch.bfloat16).eval()
    tokens = torch.randint(config["vocab_size"], (SEQUENCES, length + 1), device=device)
    world = World(device="cuda:0" if device == "cuda" else "cpu")
    network.set_attn_implementation("sdpa")
    with torch.no_grad():
        logits = network(tokens[:1, :-1], use_cache=False).logits[0].float()
        wanted = float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:]))
        del logits
        found = {"labels": _row(device, lambda: _labels(network, tokens), tokens, config)}
        with preferred_kernels(world):
            ours = _ours(network, tokens)
            found["ours"] = _row(device, ours, tokens, config)
            found["ours"]["loss off by, nats"] = abs(float(ours()[0].mean()) - wanted)
    return found


def _labels(network: Any, tokens: torch.Tensor) -> None:
    for row in tokens:
        inputs = row[None, :-1]
        network(inputs, labels=inputs, use_cache=False)


def _ours(network: Any, tokens: torch.Tensor) -> Callable[[], torch.Tensor]:
    length = tokens.shape[1] - 1
    model = ForeignModel(network, length + 1)
    parts = torch.split(tokens, max(1, MICRO_BATCH_TOKENS // length))
    return lambda: torch.cat([model.token_losses(part[:, :-1], part[:, 1:]) for part in parts])


def _row(
    device: str, action: Callable[[], Any], tokens: torch.Tensor, config: dict[str, Any]
) -> Found:
    action()  # compiles
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    targets = tokens[:, 1:]
    rate = targets.numel() / min(seconds(device, action) for _ in range(2))
    return {
        "tokens/s": rate,
        # A forward pass is a third of a step.
        "MFU": mfu(config, targets.shape[1], rate / 3),
        "peak, GiB": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
    }
