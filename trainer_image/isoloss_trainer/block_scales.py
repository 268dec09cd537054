"""Weights in 8 bits with a scale for each block of a matrix (quant_method fp8), as the numbers that they stand for.

transformers takes the size of a block from the number of scales. A matrix whose last block is shorter is then cut at the
wrong places without a word, or not at all. It also computes with the codes themselves where a machine has units for them,
which gives other numbers than on a machine without. Here every checkpoint is dequantized, by the size that config.json
says.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

METHODS: Final = ("fp8", "mxfp8")
"""Of quantization_config.quant_method."""
SCALES: Final = ".weight_scale_inv"
BLOCK: Final = (128, 128)
"""Where config.json does not say."""


def is_in_blocks(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes such weights."""
    found = config.get("quantization_config")
    return isinstance(found, dict) and found.get("quant_method") in METHODS


def block_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns of a block; None: the scales are not of blocks. Raises ValueError for anything else."""
    size = config["quantization_config"].get("weight_block_size", BLOCK)
    if size is None:
        return None
    if not isinstance(size, Sequence) or len(size) != 2:
        raise ValueError(f"weight_block_size is {size!r}")
    rows, columns = size
    if not all(type(each) is int and each > 0 for each in (rows, columns)):
        raise ValueError(f"weight_block_size is {size!r}")
    return rows, columns


def steps(
    shape: Sequence[int], scales: Sequence[int], block: tuple[int, int] | None
) -> tuple[int, int]:
    """Rows and columns of a weight of this shape that share a scale. Raises ValueError if `scales`, the shape of its
    scales, does not fit."""
    rows, columns = shape[-2:]
    found = (1, 1, *scales)[-2:]
    if block is not None and found == (math.ceil(rows / block[0]), math.ceil(columns / block[1])):
        return block
    # One scale for the matrix or for each row; and smaller blocks, which experts may have.
    if all(found) and not rows % found[0] and not columns % found[1]:
        return rows // found[0], columns // found[1]
    blocks = f"blocks of {block[0]} x {block[1]}" if block else "no blocks"
    raise ValueError(
        f"{found[0]} x {found[1]} scales do not fit a weight of {rows} x {columns} in {blocks} "
        "(quantization_config.weight_block_size)"
    )


def dequantized(
    weight: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] | None, dtype: torch.dtype
) -> torch.Tensor:
    """Each number of `weight` times the scale of its block, in `dtype`; the last block of a row or column may be shorter.

    Raises ValueError if the scales do not fit.
    """
    rows, columns = weight.shape[-2:]
    down, across = steps(weight.shape, scales.shape, block)
    # A byte is an exponent of two, as in microscaling formats.
    factors = (scales.float() - 127).exp2() if scales.dtype == torch.uint8 else scales.float()
    if factors.ndim < 2:
        factors = factors.reshape(1, 1)
    spread = factors.repeat_interleave(down, -2)[..., :rows, :]
    spread = spread.repeat_interleave(across, -1)[..., :columns]
    return (weight.float() * spread).to(dtype)


@contextmanager
def dequantizing(block: tuple[int, int] | None) -> Iterator[None]:
    """While it lasts, transformers dequantizes by the rule above."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    operation: Any = Fp8Dequantize
    theirs = operation._dequantize_one

    def ours(
        op: Any,
        quantized: torch.Tensor,
        scales: torch.Tensor,
        output_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        if quantized.dtype == torch.int8:  # experts of two 4-bit numbers a byte
            found: torch.Tensor = theirs(op, quantized, scales, output_dtype)
            return found
        return dequantized(quantized, scales, block, output_dtype or torch.bfloat16)

    operation._dequantize_one = ours
    try:
        yield
    finally:
        operation._dequantize_one = theirs
