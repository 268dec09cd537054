"""Attention kernels by torch's names, which of them may compute a model's attention, and which is the fastest.

What computes a run is part of its state: another kernel rounds differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from isoloss_contract.records import Record

Backend = Literal["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
"""As torch.nn.attention.SDPBackend names them."""
ORDER: tuple[Backend, ...] = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
"""Where nothing was measured. torch prefers flash, which is about half as fast as cuDNN on Hopper."""
DETERMINISTIC: tuple[Backend, ...] = ("FLASH_ATTENTION", "MATH")
"""Those whose backward pass gives equal bits each time, in the same order."""
TIE_SHARE = 0.03
"""Kernels whose times differ by less count as equally fast: measurements scatter by about as much."""


class HeadShape(Record):
    """The attention of one layer, as far as its kernel depends on it."""

    heads: int = Field(ge=1)
    key_value_heads: int = Field(ge=1)
    query_size: int = Field(ge=1)
    """Of one head; that of the keys, too."""
    value_size: int = Field(ge=1)
    sequence_length: int = Field(ge=1)
    precision: Literal["bf16", "float32"]


class AttentionKernel(Record):
    """A kernel, and what it is given."""

    backend: Backend
    narrow: bool = False
    """Whether values narrower than the keys stay so; otherwise they are widened with zeros."""

    def __str__(self) -> str:
        return f"{self.backend}, narrow values" if self.narrow else self.backend


class AttentionChoice(Record):
    """What a run computes with, and where that was found to be the fastest."""

    kernel: AttentionKernel
    device: str
    """As CUDA names it."""
    torch: str
    """Its version …"""
    cudnn: int | None
    """… and that of its cuDNN."""

    @property
    def place(self) -> dict[str, str | int | None]:
        """Where the kernel was the fastest."""
        return {"device": self.device, "torch": self.torch, "cudnn": self.cudnn}


def candidates(shape: HeadShape, *, deterministic: bool = False) -> tuple[AttentionKernel, ...]:
    """The kernels to choose from, in the order of preference among equally fast ones.

    Flash attention takes values of the keys' size alone. MATH, which keeps all scores, is never the fastest.
    """
    narrow = shape.value_size < shape.query_size
    allowed = DETERMINISTIC if deterministic else ORDER
    found = (
        AttentionKernel(backend="CUDNN_ATTENTION", narrow=narrow),
        AttentionKernel(backend="CUDNN_ATTENTION"),
        AttentionKernel(backend="FLASH_ATTENTION"),
        AttentionKernel(backend="EFFICIENT_ATTENTION", narrow=narrow),
    )
    return tuple(dict.fromkeys(kernel for kernel in found if kernel.backend in allowed))


def fastest(seconds: Mapping[AttentionKernel, float | str]) -> AttentionKernel | None:
    """The first that takes at most TIE_SHARE more than the least `seconds`; None where none can run.

    A text in place of seconds says why a kernel cannot.
    """
    times = {kernel: time for kernel, time in seconds.items() if not isinstance(time, str)}
    if not times:
        return None
    limit = (1 + TIE_SHARE) * min(times.values())
    return next(kernel for kernel, time in times.items() if time <= limit)
