"""Checkpoints in 8 bits with a scale for each block, beside the numbers that they stand for."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from isoloss_trainer.model import build_network

BLOCK = (24, 40)
"""Divides none of the sizes below."""


def blocks(
    weight: torch.Tensor, block: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and the numbers that they stand for, block by block."""
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales = torch.empty(math.ceil(rows / block[0]), math.ceil(columns / block[1]))
    numbers = torch.empty(rows, columns)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = (
                slice(i * block[0], (i + 1) * block[0]),
                slice(j * block[1], (j + 1) * block[1]),
            )
            part = weight[place].float() * (1 + i + 2 * j)
            scale = part.abs().max() / 448
            codes[place] = (part / scale).to(torch.float8_e4m3fn)
            scales[i, j] = scale
            numbers[place] = codes[place].float() * scale
    return codes, scales, numbers


def is_quantized(name: str) -> bool:
    kept = ("embed_tokens", "lm_head", "norm", ".mlp.gate.", "bias")
    return name.endswith(".weight") and not any(part in name for part in kept)


def save_pair(
    folder: Path, config: dict[str, Any], block: tuple[int, int] = BLOCK, **quantization: Any
) -> tuple[Path, Path]:
    """A checkpoint in blocks with all else in bfloat16, and one of the numbers that it stands for."""
    network = build_network(config, seed=0)
    plain, packed = folder / "plain", folder / "packed"
    for each in (plain, packed):
        network.save_pretrained(each)
    found = load_file(plain / "model.safetensors")
    numbers, codes = {}, {}
    for name, tensor in found.items():
        if is_quantized(name):
            code, scale, number = blocks(tensor, block)
            codes[name], codes[f"{name}_scale_inv"], numbers[name] = code, scale, number
        else:
            codes[name] = tensor.bfloat16()
            numbers[name] = tensor.bfloat16().float()
    assert len(codes) > len(numbers)
    save_file(numbers, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(codes, packed / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((packed / "config.json").read_text())
    described["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": list(block),
        **quantization,
    }
    (packed / "config.json").write_text(json.dumps(described))
    return plain, packed
