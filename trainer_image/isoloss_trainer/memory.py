"""What training a model takes of an accelerator's memory and of the host's, and which accelerators a task fits on.

isoloss_contract.footprint has what is on the accelerator, part by part: the operator counts the same from a config. What
the compiler keeps beyond or below that is in docs/reference/memory.md.
"""

from typing import Any, Literal, NamedTuple

import torch

from isoloss_contract.footprint import (
    Fit,
    Footprint,
    ModelShape,
    Precision,
    copied_numbers,
    fit,
    kept_numbers,
)
from isoloss_contract.memory import DEVICES, FILE_BYTES, GPUS_OF_NODE, PROCESS_BYTES
from isoloss_contract.records import TrainTask
from isoloss_trainer.model import COUNTED, build_network, check_counts, layers_of

# -------------------------------------------------------------------- memory, counted from the model


def footprint(network: Any, precision: Precision, processes: int = 1) -> Footprint:
    """Memory for training `network` (transformers, also on the meta device) in `processes` processes."""
    return shape_of(network).footprint(precision, processes)


def shape_of(network: Any) -> ModelShape:
    """Of a transformers model, also on the meta device."""
    total = sum(p.numel() for p in network.parameters())
    layers = [sum(p.numel() for p in layer.parameters()) for layer in layers_of(network)]
    vocabulary, hidden = network.get_output_embeddings().weight.shape
    config = network.config
    # Some families, such as GPT-2, write them under other names.
    numbers = {**config.to_dict(), **{name: getattr(config, name) for name in COUNTED}}
    return ModelShape(
        parameters=total,
        largest_layer=max(layers, default=0),
        outside_layers=total - sum(layers),
        hidden=hidden,
        heads=config.num_attention_heads,
        vocabulary=vocabulary,
        kept=kept_numbers(numbers),
        copied=copied_numbers(numbers),
    )


class HostFootprint(NamedTuple):
    """Bytes of a node's memory, of all processes on it together."""

    build: int
    """Until the weights are on the accelerators: of the first node, where rank 0 has them whole."""
    train: int
    """With a copy of its part of the training state, pinned, from which checkpoints are written, and what is being
    written. Resuming takes no more: a checkpoint is read into the same copy."""


def host_footprint(
    network: Any, processes: int, given: Literal["random", "bf16", "float32"] = "random"
) -> HostFootprint:
    """Host memory for training on `processes` accelerators, GPUS_OF_NODE of them on a node. `given`: weights that are
    drawn, or a checkpoint's in that type."""
    sizes = [p.numel() for p in network.parameters()]
    here = min(processes, GPUS_OF_NODE)
    # An allocation of pinned memory is rounded up to a power of two; there are four of each weight.
    copies = sum(4 * _power_of_two(4 * -(-size // processes)) for size in sizes)
    files = FILE_BYTES + 4 * max(sizes) // processes
    return HostFootprint(
        build=here * PROCESS_BYTES + sum(sizes) * (2 if given == "bf16" else 4),
        train=here * (PROCESS_BYTES + copies + files),
    )


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length() if number else 0


# -------------------------------------------------------------------------------- the plan of a task


PROCESSES = (1, 2, 4, 8, 16, 32, 64)


def plan(task: TrainTask) -> str:
    """A table in words: bytes of each part, and what fits on the DEVICES, on so many GPUs up to one for each sequence of
    a batch. Host memory is per node, of 8 GPUs at most. Raises BadConfiguration."""
    point = task.point
    length, batch, precision = point.sequence_length, point.batch_size, point.precision
    with torch.device("meta"):
        network = build_network(point.model)
    check_counts(network.config)
    heads = "".join(f"  {device:>22}" for device in DEVICES)
    rows = [
        f"GPUs  state/GiB  whole/GiB  logits/GiB  sequence/GiB{heads}  host, build/GiB  host, train/GiB"
    ]
    for count in (count for count in PROCESSES if count == 1 or count <= batch):
        needed = footprint(network, precision, count)
        host = host_footprint(network, count, precision if point.initial_weights else "random")
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
    return f"{micro_batch(share, found.sequences)} at once{twice}"


def micro_batch(share: int, fitting: int) -> int:
    """Sequences at once, of a device's `share` of a batch, where `fitting` fit: all or equal parts, for another shape
    is compiled anew; but as many as fit, with a smaller rest, where equal parts would be less than half of that."""
    most = min(fitting, share)
    equal = next(part for part in range(most, 0, -1) if share % part == 0)
    return equal if 2 * equal >= most else most


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f}"
