"""Which accelerators a training task fits on, and what it takes of their hosts, before it is given to one."""

from __future__ import annotations

from typing import Any

import torch

from isoloss_contract.footprint import Fit, Precision, fit
from isoloss_contract.memory import DEVICES
from isoloss_contract.records import TrainTask
from isoloss_trainer.memory import footprint, host_footprint
from isoloss_trainer.model import build_network

PROCESSES = (1, 2, 4, 8, 16, 32, 64)


def plan(task: TrainTask) -> str:
    """A table in words: bytes of each part, and what fits on the DEVICES. Raises BadConfiguration."""
    point = task.point
    with torch.device("meta"):
        network = build_network(point.model)
    return table(
        network,
        point.sequence_length,
        point.batch_size,
        point.precision,
        given=point.initial_weights is not None,
    )


def table(
    network: Any, length: int, batch: int, precision: Precision = "bf16", *, given: bool = False
) -> str:
    """Memory of `network`, on the meta device, on so many GPUs up to one for each sequence of a batch. `given`: it
    starts from a checkpoint's weights. Host memory is per node, of 8 GPUs at most."""
    heads = "".join(f"  {device:>22}" for device in DEVICES)
    rows = [
        f"GPUs  state/GiB  whole/GiB  logits/GiB  sequence/GiB{heads}  host, build/GiB  host, train/GiB"
    ]
    for count in (count for count in PROCESSES if count == 1 or count <= batch):
        needed = footprint(network, precision, count)
        host = host_footprint(network, count, precision if given else "random")
        sequence = needed.of_sequences(1, length, recompute=False)
        fits = [
            in_words(fit(needed, length, memory), -(-batch // count))
            for memory in DEVICES.values()
        ]
        rows.append(
            f"{count:>4}  {_gib(needed.state):>9}  {_gib(needed.whole):>9}  {_gib(needed.head):>10}  "
            f"{_gib(sequence):>12}{''.join(f'  {words:>22}' for words in fits)}  {_gib(host.build):>15}  "
            f"{_gib(host.train):>15}"
        )
    return "\n".join(rows)


def in_words(found: Fit | None, share: int) -> str:
    """Such as "4 at once" or "1 at once, recomputed"; `share`: sequences of a step per device."""
    if found is None:
        return "does not fit"
    twice = ", recomputed" if found.recompute else ""
    return f"{min(found.sequences, share)} at once{twice}"


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f}"
