"""The training state as named tensors, by which checkpoints are written, compared and read."""

from __future__ import annotations

import torch

from isoloss_contract.records import content_key
from isoloss_trainer.termination import BadConfiguration

Tensors = dict[str, torch.Tensor]
Parts = dict[str, Tensors]
"""From the parts of the state, such as the weights, to the tensors in it by their names in the model."""


class OtherLayout(BadConfiguration):
    """A checkpoint's tensors are not those of the model that this image builds."""


def layout_digest(parts: Parts) -> str:
    """Digest of the names and shapes of all tensors, whatever their order."""
    return content_key(_shapes(parts))


def check_layout(wanted: Parts, found: Parts) -> None:
    """Raises OtherLayout, which names a tensor, where `found` lacks one of `wanted`, has one more or
    has one in another shape."""
    ours, theirs = _shapes(wanted), _shapes(found)
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise OtherLayout(
                "OtherLayout",
                f"the checkpoint has {name} {_words(theirs.get(name))}, the model that this image "
                f"builds {_words(ours.get(name))}: train the point with the image that wrote the "
                "checkpoint, or delete the point's checkpoints to start over",
                "podTemplate",
            )


def _shapes(parts: Parts) -> dict[str, list[int]]:
    return {
        f"{part}: {name}": list(tensor.shape)
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def _words(shape: list[int] | None) -> str:
    return "not at all" if shape is None else f"in shape {shape}"
