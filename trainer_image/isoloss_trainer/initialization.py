"""How random weights start, beyond what transformers does for the family."""

from __future__ import annotations

import math
from typing import Any

import torch

from isoloss_contract.records import PointConfig
from isoloss_trainer.termination import BadConfiguration

RESIDUAL_OUTPUTS = ("o_proj.weight", "down_proj.weight", "down_proj")
"""Ends of the names of the matrices that write into the residual stream; stacked experts have no `.weight`."""


def initialize(network: Any, point: PointConfig) -> None:
    """Change the fresh random weights of `network` as the point asks. Raises BadConfiguration."""
    if point.initialization == "DepthScaled":
        scale_residual_outputs(network)


@torch.no_grad()
def scale_residual_outputs(network: Any) -> None:
    """Divide what each of the 2 * layers blocks adds to the residual stream by sqrt(2 * layers).

    The stream's variance at the last layer then does not grow with the depth (Radford et al. 2019,
    GPT-2). Raises BadConfiguration for a family whose output projections are not known by name.
    """
    layers = network.config.num_hidden_layers
    outputs = [
        parameter
        for name, parameter in network.named_parameters()
        if name.endswith(RESIDUAL_OUTPUTS)
    ]
    if len(outputs) < 2 * layers:
        message = f"DepthScaled is not possible for {network.config.model_type}: use Default"
        raise BadConfiguration("BadModel", message, "initialization")
    for parameter in outputs:
        parameter.div_(math.sqrt(2 * layers))
