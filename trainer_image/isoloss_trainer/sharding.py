"""Spreads a model over processes, and computes in bfloat16 with float32 weights: torch's fully_shard.

Each process has its part of every weight in float32, and with it of gradients, average and moments (ZeRO, stage 3:
Rajbhandari et al. 1910.02054). A layer's weights are put together, in the type that computes, while the layer
computes; gradients are summed in float32. A single process that computes in float32 needs none of this.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from isoloss_trainer.model import LanguageModel
from isoloss_trainer.world import World

FORWARD_METHODS = ("summed_loss", "token_losses")
"""Methods of LanguageModel that gather the weights that belong to no layer."""


def is_sharded(precision: Literal["bf16", "float32"], world: World) -> bool:
    """Whether weights are spread; of one process also if it computes in another type than it keeps."""
    return world.size > 1 or precision == "bf16"


def shard(model: LanguageModel, precision: Literal["bf16", "float32"], world: World) -> None:
    """Spread `model` over all processes, on their devices, with the weights that rank 0 has in its host's memory.

    What other processes have is not looked at; it may be on the meta device. On a device there is never more than
    the parts, and one whole tensor.
    """
    network = model.network
    weights = {**network.state_dict()} if world.is_first else {}
    _forget_weights(network)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if precision == "bf16" else None, reduce_dtype=torch.float32
    )
    mesh = world.mesh(world.device_type)
    for module in (*model.layers, model):
        # The root, which is put together last and needed first, stays so between forward and backward pass.
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=module is not model)
        assert isinstance(module, FSDPModule)
        # A sum, not a mean: losses are scaled by the whole batch's tokens.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    for method in FORWARD_METHODS:
        register_fsdp_forward_method(model, method)
    model._apply(lambda t: _placed(t, world.device))  # type: ignore[no-untyped-call]
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(network, weights, options=options)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor, not copied."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def forget_whole_weights(model: nn.Module) -> None:
    """Call after a change of the weights outside of the optimizer: what was put together before it is stale."""
    if isinstance(model, FSDPModule):
        model.reshard()


def _forget_weights(network: Any) -> None:
    """Leave the shapes of all parameters on the meta device, in float32 whatever they were kept in; those that are
    tied stay so."""
    shapes: dict[nn.Parameter, nn.Parameter] = {}
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                shape = nn.Parameter(
                    parameter.detach().to("meta", torch.float32), parameter.requires_grad
                )
                module._parameters[name] = shapes.setdefault(parameter, shape)


def _placed(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
