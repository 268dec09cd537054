"""What training takes of memory whatever the model looks like: counted from its number of parameters alone."""

from dataclasses import dataclass

STATE_BYTES, GRADIENT_BYTES = 16, 4
"""Per parameter: float32 weights, their average and both moments; and the float32 gradients."""
USABLE_SHARE = 0.92
"""Share of a device's memory: the rest goes to the context, workspaces and gaps between allocations."""
DEVICES = {"80 GB": 79 * 2**30, "141 GB": 139 * 2**30}
"""Memory that a device of this name reports (H100, H200)."""
GPUS_OF_NODE = 8
PROCESS_BYTES = 3 * 2**30
"""Host memory of a process with torch and the driver of an accelerator. Not measured on one."""
FILE_BYTES = 2**28
"""A file of a checkpoint ends with the part that makes it this large."""


@dataclass(frozen=True)
class StateMemory:
    """Bytes that a training state takes, activations and logits left out."""

    device: int
    """Bytes on each accelerator."""
    host_build: int
    """Bytes on a node at most, until the weights are on its accelerators: bfloat16 ones of a checkpoint take half of
    it."""
    host_train: tuple[int, int]
    """Bytes on a node, least and most: with a pinned copy, into which checkpoints are read, too. An allocation of
    pinned memory is rounded up to a power of two."""


def state_memory(parameters: int, accelerators: int, nodes: int | None = None) -> StateMemory:
    """Memory for a model of so many parameters on so many accelerators in all, as many on each of the `nodes`;
    default: GPUS_OF_NODE of them."""
    here = min(accelerators, GPUS_OF_NODE) if nodes is None else accelerators // nodes
    processes, copy = here * PROCESS_BYTES, STATE_BYTES * parameters * here // accelerators
    return StateMemory(
        device=(STATE_BYTES + GRADIENT_BYTES) * parameters // accelerators,
        host_build=processes + 4 * parameters,
        host_train=(processes + copy, processes + 2 * copy + here * 2 * FILE_BYTES),
    )
