"""Decides where a checkpoint's weights are placed: a copy on every device if one device holds them,
else layers spread over as few accelerators as hold them. Nothing is offloaded to a disk: that would
take days without saying so."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isoloss_trainer.termination import OutOfMemory
from isoloss_trainer.world import World

USABLE_SHARE = 0.95
"""Share of a device's memory; the rest goes to contexts and gaps between allocations."""
WORKING_BYTES = 10 * 2**30
"""Kept free of weights on an accelerator: for one chunk of logits (CHUNK_BYTES) in both
precisions, and a layer's activations of one micro-batch."""
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class Placement:
    """Device of each module of one copy: from module names to device numbers within the copy."""

    modules: dict[str, int]
    devices: int
    """Number of devices per copy."""

    def device_map(self, first: int) -> dict[str, int]:
        """As transformers takes it, for a copy whose first accelerator is `first`."""
        return {name: first + number for name, number in self.modules.items()}


def place(shapes: Any, room: int, devices: int) -> Placement:
    """The placement on the fewest devices of a model of `shapes` (transformers, on the meta device), for
    `devices` devices with `room` bytes for weights each. Raises OutOfMemory if there is none."""
    needed = weight_bytes(shapes)
    if needed <= room:
        return Placement({"": 0}, 1)
    if needed <= room * devices:
        for count in range(2, devices + 1):
            modules = _spread(shapes, room, count)
            if modules is not None:
                return Placement(modules, count)
    available = f"{devices} devices with {room:,} bytes each" if devices > 1 else f"{room:,} bytes"
    message = f"the weights take {needed:,} bytes in {shapes.dtype}; available: {available}"
    raise OutOfMemory("CheckpointTooLarge", message, "checkpoint.uri")


def _spread(shapes: Any, room: int, count: int) -> dict[str, int] | None:
    """Layers in order over `count` devices, each filled before the next; None if they do not fit."""
    from accelerate import infer_auto_device_map

    found: dict[str, int | str] = infer_auto_device_map(
        shapes,
        max_memory=dict.fromkeys(range(count), room),
        no_split_module_classes=list(shapes._no_split_modules or ()),
    )
    placed = {name: device for name, device in found.items() if isinstance(device, int)}
    # accelerate would offload the others to a disk
    return placed if len(placed) == len(found) else None


def weight_bytes(shapes: Any) -> int:
    """Bytes of all weights and buffers; tied ones are counted once."""
    tensors = [*shapes.parameters(), *shapes.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def room_for_weights(world: World) -> tuple[int, int]:
    """Bytes for weights on the smallest device, and the number of devices.

    On a CPU every process has its own copy in the host's memory.
    """
    if world.on_cpu:
        return int(USABLE_SHARE * host_bytes()) // world.size, 1
    count = torch.cuda.device_count()
    sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(count)]
    return room_beside_work(min(sizes)), count


def room_beside_work(device_bytes: int) -> int:
    """Bytes for weights on an accelerator; a small one keeps half of its memory free."""
    return int(USABLE_SHARE * device_bytes) - min(WORKING_BYTES, device_bytes // 2)


def host_bytes() -> int:
    """Memory that this process may use: the machine's or its container's limit."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_container_limits())


def _container_limits() -> Iterator[int]:
    yield 2**62
    for path in CGROUP_LIMITS:
        try:
            yield int(path.read_text())
        except (OSError, ValueError):
            continue  # absent, or "max"
