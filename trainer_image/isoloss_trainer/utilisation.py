"""How much of its accelerators a run uses: model FLOPs utilisation (MFU) in the PaLM convention."""

from __future__ import annotations

import math
import os
from typing import Any, Literal, NamedTuple

import torch

from isoloss_contract.records import ParameterCounts
from isoloss_trainer.attention import attention_shape, head_sizes
from isoloss_trainer.termination import BadConfiguration
from isoloss_trainer.world import World

PEAK_FLOPS_VARIABLE = "ISOLOSS_PEAK_FLOPS"
"""FLOP/s of one device without sparsity, for devices that are not in PEAK_FLOPS, or at another limit."""
PEAK_FLOPS = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
}
"""FLOP/s of dense bfloat16 products as the makers give them, keyed by words of the name that torch reports for the
device."""


class TokenFlops(NamedTuple):
    """Training FLOPs of a token: 6 per active matrix parameter, head included, and those of attention."""

    palm: float
    """12 * layers * width * sequence length, nothing masked (Chowdhery et al. 2204.02311, appendix B)."""
    executed: float | None
    """Under the causal mask; None for a family whose attention is not counted."""


def flops_per_token(config: Any, parameters: ParameterCounts, sequence_length: int) -> TokenFlops:
    """Training FLOPs per token of a transformers `config`."""
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    query, value = head_sizes(config)
    matrices, shape = 6.0 * parameters.active, attention_shape(config)
    return TokenFlops(
        palm=matrices + 6.0 * int(layers * heads * (query + value)) * sequence_length,
        executed=None if shape is None else matrices + shape.flops_per_token(sequence_length),
    )


def peak_flops(world: World, precision: Literal["bf16", "float32"]) -> float | None:
    """FLOP/s of all devices together; None if the device is unknown, or computes in float32.

    Raises BadConfiguration if PEAK_FLOPS_VARIABLE is not a positive number.
    """
    if given := os.environ.get(PEAK_FLOPS_VARIABLE):
        return world.size * _number(given)
    if world.on_cpu or precision != "bf16":
        return None
    found = peak_of(torch.cuda.get_device_name(world.device))
    return None if found is None else world.size * found


def peak_of(device: str) -> float | None:
    """FLOP/s of a device by its name, such as "NVIDIA H100 80GB HBM3"; None if it is unknown."""
    words = set(device.split())
    # Names that are longer come first: "H100 NVL" is another device than "H100".
    known = sorted(PEAK_FLOPS, key=len, reverse=True)
    if "MIG" in words:  # a part of it
        return None
    # "NVIDIA A100-SXM4-80GB" is one word.
    words |= {word.split("-")[0] for word in words}
    return next((PEAK_FLOPS[name] for name in known if set(name.split()) <= words), None)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise BadConfiguration(
            "BadVariable",
            f"{PEAK_FLOPS_VARIABLE} is {text!r}: give the FLOP/s of one device, such as 989e12",
            "podTemplate",
        )
    return number
