"""Which accelerators a training task fits on, before it is given to one."""

from __future__ import annotations

import torch

from isoloss_contract.records import TrainTask
from isoloss_trainer.memory import Fit, fit, footprint
from isoloss_trainer.model import build_network

DEVICES = {"80 GB": 79 * 2**30, "141 GB": 139 * 2**30}
"""Memory that a device of this name reports (H100, H200)."""
PROCESSES = (1, 2, 4, 8)


def plan(task: TrainTask) -> str:
    """A table in words: bytes of each part, and what fits on the DEVICES. Raises BadConfiguration."""
    point = task.point
    with torch.device("meta"):
        network = build_network(point.model)
    rows = ["GPUs  state/GiB  logits/GiB  sequence/GiB  " + "  ".join(f"{d:>22}" for d in DEVICES)]
    for count in PROCESSES:
        needed = footprint(network, point.precision, count)
        share = -(-point.batch_size // count)
        sequence = needed.of_sequences(1, point.sequence_length, recompute=False)
        fits = [
            f"{in_words(fit(needed, point.sequence_length, memory), share):>22}"
            for memory in DEVICES.values()
        ]
        numbers = (
            f"{count:>4}  {_gib(needed.state):>9}  {_gib(needed.head):>10}  {_gib(sequence):>12}"
        )
        rows.append("  ".join([numbers, *fits]))
    return "\n".join(rows)


def in_words(found: Fit | None, share: int) -> str:
    """Such as "4 at once" or "1 at once, recomputed"; `share`: sequences of a step per device."""
    if found is None:
        return "does not fit"
    twice = ", recomputed" if found.recompute else ""
    return f"{min(found.sequences, share)} at once{twice}"


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f}"
