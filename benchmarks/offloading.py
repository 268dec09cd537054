"""Moves the tensors of one rival to the host while others have their turn, so that each has the whole device.

Memory is emptied underneath the tensors and filled again: views, compiled code and optimizers keep what they refer
to.
"""

import gc
from collections.abc import Iterable, Iterator

import torch

LEAST_BYTES = 2**20
"""Smaller tensors stay: they may be constants that rivals share."""
KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
Copies = list[tuple[torch.UntypedStorage, torch.UntypedStorage]]
"""Memory that tensors had on a device, each with its copy on the host."""


def offload(tensors: Iterable[torch.Tensor]) -> Copies:
    """Empty the memory of `tensors`, views included; none may be used until it is loaded."""
    copies = []
    for storage in {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}.values():
        copy = torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage()
        copy.copy_(storage)
        copies.append((storage, copy))
        storage.resize_(0)
    return copies


def load(copies: Copies) -> None:
    """Put everything back; call once."""
    for storage, copy in copies:
        storage.resize_(copy.nbytes())
        storage.copy_(copy)
    copies.clear()


def resident(device: torch.device, least_bytes: int = LEAST_BYTES) -> Iterator[torch.Tensor]:
    """Every tensor that Python knows and whose memory on `device` is at least `least_bytes`."""
    gc.collect()
    for thing in gc.get_objects():
        # Not isinstance: fake tensors have no memory, and lazy modules answer for their class.
        if type(thing) not in KINDS or thing.device.type != device.type:
            continue
        if thing.untyped_storage().nbytes() >= least_bytes:
            yield thing
