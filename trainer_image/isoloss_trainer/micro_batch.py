"""How many sequences go through the model at once; it changes results by rounding only."""

from __future__ import annotations

from typing import Any

import torch

from isoloss_contract.footprint import Fit, fit
from isoloss_contract.records import PointConfig
from isoloss_trainer.memory import footprint
from isoloss_trainer.world import World

CPU_TOKENS = 4096
"""On a CPU more is slower: the caches are small."""
CONTEXT_BYTES = 2**30
"""At most, of the driver's own in a process, which the plan's share leaves room for."""


def first_guess(network: Any, point: PointConfig, world: World, halvings: int) -> Fit:
    """How to start: a divisor of this process's part of the batch.

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
    recompute = world.any(fitting.recompute)
    # Equal parts: every other shape would be compiled again.
    return Fit(next(part for part in range(size, 0, -1) if share % part == 0), recompute)


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
