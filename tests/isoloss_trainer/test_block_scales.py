"""Checkpoints in 8 bits with a scale for each block have the loss of the numbers that they stand for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from isoloss_trainer.block_scales import block_size, dequantized, steps
from isoloss_trainer.foreign_model import load_network
from isoloss_trainer.termination import BadData
from tests.isoloss_trainer.block_codes import BLOCK, save_pair
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, QWEN3_MOE, uri
from tests.isoloss_trainer.conftest import Prepared

NARROW = (16, 16)
"""Divides most of them."""


@pytest.mark.parametrize("config", [LLAMA, DEEPSEEK, QWEN3_MOE], ids=lambda c: c["model_type"])
@pytest.mark.parametrize("block", [BLOCK, NARROW], ids=["with edges", "without"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_loss_is_that_of_the_numbers_that_the_codes_stand_for(
    prepared: Prepared,
    tmp_path: Path,
    config: dict[str, Any],
    block: tuple[int, int],
    precision: str,
) -> None:
    plain, packed = save_pair(tmp_path, config, block)
    losses = [
        prepared.evaluated(each, tmp_path, precision=precision).loss for each in (plain, packed)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_no_weight_keeps_the_type_that_it_is_stored_in(tmp_path: Path) -> None:
    """Norms in bfloat16 among matrices in float32 ended as a bug of ours."""
    _, packed = save_pair(tmp_path, LLAMA)
    for dtype in (torch.float32, torch.bfloat16):
        network = load_network(packed, uri(packed), dtype)
        assert {each.dtype for each in network.parameters()} == {dtype}
        rotation = {each.dtype for name, each in network.named_buffers() if "inv_freq" in name}
        assert rotation == {torch.float32}


def test_a_machine_with_units_for_eight_bits_computes_with_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would keep the codes there, and round activations to them."""
    plain, packed = save_pair(tmp_path, LLAMA)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    network = load_network(packed, uri(packed), torch.float32)
    monkeypatch.undo()
    expected = load_network(plain, uri(plain), torch.float32).state_dict()
    found = network.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("what", ["a row more", "none left", "another block size", "in no file"])
def test_scales_that_do_not_fit_are_named_with_their_weight(tmp_path: Path, what: str) -> None:
    _, packed = save_pair(tmp_path, LLAMA)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors = load_file(packed / "model.safetensors")
    scales = tensors[f"{name}_scale_inv"]
    assert scales.shape == (3, 1)
    changed = {
        "a row more": torch.cat([scales, scales[:1], scales[:1]]),
        "none left": scales[:0],
    }.get(what, scales)
    tensors[f"{name}_scale_inv"] = changed.contiguous()
    if what == "in no file":
        del tensors[f"{name}_scale_inv"]
    save_file(tensors, packed / "model.safetensors", metadata={"format": "pt"})
    if what == "another block size":
        described = json.loads((packed / "config.json").read_text())
        described["quantization_config"]["weight_block_size"] = [8, 8]
        (packed / "config.json").write_text(json.dumps(described))
    words = (
        r"model\.layers\.0\..*(scales do not fit a weight|in F8_E4M3, and no file has its scales)"
    )
    with pytest.raises(BadData, match=words) as caught:
        load_network(packed, uri(packed), torch.float32)
    assert caught.value.code == "NotACheckpoint"


@pytest.mark.parametrize("size", [[128], [128, 0], "128", [128, "128"], 3])
def test_a_block_size_that_is_none_is_refused(tmp_path: Path, size: Any) -> None:
    _, packed = save_pair(tmp_path, LLAMA, weight_block_size=size)
    with pytest.raises(BadData, match="weight_block_size"):
        load_network(packed, uri(packed), torch.float32)


def test_a_published_shape_that_blocks_do_not_divide() -> None:
    """kv_a_proj_with_mqa of DeepSeek-V3: 512 + 64 rows."""
    assert steps((576, 7168), (5, 56), (128, 128)) == (128, 128)
    assert steps((192, 128), (2, 1), (128, 128)) == (128, 128), "not 96"


def test_one_scale_for_the_matrix_or_for_each_row() -> None:
    assert block_size({"quantization_config": {"weight_block_size": None}}) is None
    weight = torch.ones(6, 4).to(torch.float8_e4m3fn)
    whole = dequantized(weight, torch.tensor(2.0), None, torch.float32)
    assert torch.equal(whole, torch.full((6, 4), 2.0))
    rows = torch.arange(6.0)[:, None]
    assert torch.equal(dequantized(weight, rows, None, torch.float32), rows.expand(6, 4))


def test_exponents_of_two_in_bytes() -> None:
    weight = torch.ones(4, 32).to(torch.float8_e4m3fn)
    scales = torch.full((4, 1), 128, dtype=torch.uint8)
    found = dequantized(weight, scales, (1, 32), torch.float32)
    assert torch.equal(found, torch.full((4, 32), 2.0))


def test_matrices_of_experts_that_are_stacked() -> None:
    weight = torch.ones(2, 5, 4).to(torch.float8_e4m3fn)
    scales = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
    found = dequantized(weight, scales, (3, 4), torch.float32)
    assert found[:, :, 0].tolist() == [[1, 1, 1, 2, 2], [3, 3, 3, 4, 4]]


@pytest.mark.parametrize("method", ["compressed-tensors", "gptq", "awq", "bitsandbytes"])
def test_codes_that_take_a_library_of_their_own_are_refused_with_what_to_do(
    tmp_path: Path, method: str
) -> None:
    _, packed = save_pair(tmp_path, LLAMA, quant_method=method, bits=4, load_in_4bit=True)
    with pytest.raises(BadData, match=rf"\({method}\).*library.*dequantized") as caught:
        load_network(packed, uri(packed), torch.float32)
    assert caught.value.code == "NotACheckpoint"
