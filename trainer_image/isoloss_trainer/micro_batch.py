"""How many sequences go through the model at once; it changes results by rounding only."""

from __future__ import annotations

from typing import Any

import torch

from isoloss_contract.records import PointConfig
from isoloss_trainer.world import World

CPU_TOKENS = 4096
"""On a CPU more is slower: the caches are small."""
ACCELERATOR_TOKENS = 131_072
"""Enough to saturate an accelerator."""
MEMORY_SHARE = 0.85
"""Of the free memory; the rest is for fragmentation and workspaces."""


def first_guess(config: Any, point: PointConfig, world: World, halvings: int) -> int:
    """Sequences per micro-batch to start with: a divisor of this process's part of the batch.

    `halvings` counts earlier attempts that the host killed for its own memory, which holds the
    activations on a CPU only. Out-of-memory errors halve a guess too high for an accelerator.
    """
    length = point.sequence_length
    tokens = CPU_TOKENS if world.on_cpu else _fitting_tokens(config, world)
    share = -(-point.batch_size // world.size)
    size = max(1, min(tokens // length, share) >> (halvings if world.on_cpu else 0))
    # Free memory differs between devices, but all processes must agree.
    size = -world.largest(-size)
    # Equal parts: every other shape would be compiled again.
    return next(part for part in range(size, 0, -1) if share % part == 0)


def _fitting_tokens(config: Any, world: World) -> int:
    """Tokens whose activations fit: about 34 bytes x width per layer and token in bfloat16
    (Korthikanti et al. 2205.05198, without the attention matrix), doubled for gated MLPs."""
    free, _ = torch.cuda.mem_get_info(world.device)
    per_token = 68 * config.hidden_size * config.num_hidden_layers
    return int(min(ACCELERATOR_TOKENS, MEMORY_SHARE * free / per_token))


REFUSALS = ("out of memory", "_status_alloc_failed", "can't allocate memory", "not enough memory")
"""What the CUDA runtime and Triton, cuBLAS and cuDNN, and the host's allocators say, in lower case."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator or the host refused memory. Not every library raises a type of its own."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(refusal in text for refusal in REFUSALS)
