"""How many sequences go through the model at once. Never changes a result beyond rounding."""

from __future__ import annotations

from typing import Any

import torch

from isoloss_contract.records import PointConfig
from isoloss_trainer.world import World

CPU_TOKENS = 4096
"""Caches are small: more at once is slower on a CPU."""
ACCELERATOR_TOKENS = 131_072
"""Enough to fill an accelerator; more gains nothing."""
MEMORY_SHARE = 0.85
"""Of the free memory; the rest is for fragments and workspaces."""


def first_guess(config: Any, point: PointConfig, world: World, halvings: int) -> int:
    """Sequences per micro-batch to begin with: a divisor of this process's part of the batch.

    `halvings` counts earlier attempts that the host killed for their memory. Where the guess is too
    high for an accelerator's memory, out-of-memory errors halve it.
    """
    length = point.sequence_length
    tokens = CPU_TOKENS if world.device.type == "cpu" else _fitting_tokens(config, world.device)
    share = -(-point.batch_size // world.size)
    size = max(1, min(tokens // length, share) >> halvings)
    # Parts of one size: every other shape would be compiled anew.
    return next(part for part in range(size, 0, -1) if share % part == 0)


def _fitting_tokens(config: Any, device: torch.device) -> int:
    """Tokens whose activations fit: about 34 bytes x width a layer and token in bfloat16 (Korthikanti
    et al. 2205.05198, without the attention matrix), doubled for gated feed-forward parts."""
    free, _ = torch.cuda.mem_get_info(device)
    per_token = 68 * config.hidden_size * config.num_hidden_layers
    return int(min(ACCELERATOR_TOKENS, MEMORY_SHARE * free / per_token))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator or the host refused memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "can't allocate memory" in str(error) or "not enough memory" in str(error)
