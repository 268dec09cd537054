"""Attention that needs no mask, and which kernels compute it."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from isoloss_contract.footprint import Precision
from isoloss_trainer.attention import NAME, causal_attention, describe_kernels, preferred_kernels
from isoloss_trainer.model import LanguageModel, build_network
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import DEEPSEEK, SEQUENCE_LENGTH


@pytest.mark.parametrize(
    ("deterministic", "wanted"),
    [
        (False, ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]),
        (True, ["FLASH_ATTENTION", "MATH"]),
    ],
)
def test_an_accelerator_takes_the_first_kernel_in_order_that_can_run(
    deterministic: bool, wanted: list[str]
) -> None:
    """On a CPU nothing is preferred."""
    order = torch._C._get_sdp_priority_order()
    with preferred_kernels(World(device="cuda:0"), deterministic=deterministic):
        now = torch._C._get_sdp_priority_order()
        enabled = {SDPBackend(number).name for number in now} & _enabled()
        assert [SDPBackend(number).name for number in now][: len(wanted)] == wanted
        assert enabled == set(wanted)
    with preferred_kernels(World(), deterministic=deterministic):
        assert torch._C._get_sdp_priority_order() == order


@pytest.mark.parametrize(("precision", "wanted"), [("bf16", "high"), ("float32", "highest")])
def test_products_in_float32_are_rounded_in_runs_in_bfloat16_alone(
    precision: Precision, wanted: str
) -> None:
    """And on an accelerator alone; a run in float32 computes in it."""
    with preferred_kernels(World(device="cuda:0"), precision):
        assert torch.get_float32_matmul_precision() == wanted
    assert torch.get_float32_matmul_precision() == "highest"
    with preferred_kernels(World(), precision):
        assert torch.get_float32_matmul_precision() == "highest"


def _enabled() -> set[str]:
    cuda: Any = torch.backends.cuda
    found = {
        "CUDNN_ATTENTION": cuda.cudnn_sdp_enabled(),
        "FLASH_ATTENTION": cuda.flash_sdp_enabled(),
        "EFFICIENT_ATTENTION": cuda.mem_efficient_sdp_enabled(),
        "MATH": cuda.math_sdp_enabled(),
    }
    return {name for name, is_on in found.items() if is_on}


def test_values_narrower_than_keys_are_widened_for_flash() -> None:
    """And the log names the kernel that torch takes for them."""
    network = build_network({**DEEPSEEK, "v_head_dim": 4}, seed=0)
    LanguageModel(network, SEQUENCE_LENGTH)
    kernels = describe_kernels(network, SEQUENCE_LENGTH, torch.float32)
    assert (kernels["attention"], kernels["attention_kernel"]) == (NAME, "FLASH_ATTENTION")
    assert kernels["attention_values"] == "padded"
    query, key = torch.randn(2, 1, 2, 8, 16).unbind(0)
    value = torch.randn(1, 2, 8, 4)
    found, _ = causal_attention(torch.nn.Module(), query, key, value, None)
    scores = (query @ key.transpose(-1, -2) / 4).masked_fill(
        torch.ones(8, 8, dtype=torch.bool).triu(1), float("-inf")
    )
    torch.testing.assert_close(found.transpose(1, 2), scores.softmax(-1) @ value)
