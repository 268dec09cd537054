"""Memory counted without a GPU: every shape of the GPU benchmarks works, and what its parts take."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.trainer_memory import (
    LENGTH,
    PRESETS,
    AliveBytes,
    bytes_per_logit,
    kept_by_compiled_body,
    model_of,
    plain_peak,
)
from isoloss_trainer.memory import footprint


@pytest.mark.slow
def test_the_compiled_loss_keeps_six_bytes_per_logit() -> None:
    """The float32 logits and their bfloat16 gradient, and nothing else of their size."""
    assert bytes_per_logit() == 6


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_the_plan_counts_about_what_the_compiler_keeps(preset: str) -> None:
    """The plan's error is on the safe side, or within a fifth."""
    model = model_of(preset)
    planned = footprint(model.network, "bf16").of_sequences(1, LENGTH, recompute=False)
    kept = kept_by_compiled_body(model)
    assert 0.5 * planned < kept < 1.2 * planned
    assert plain_peak(model) > kept


def test_bytes_alive_are_counted_once_and_forgotten_when_freed() -> None:
    with AliveBytes() as alive:
        first = torch.zeros(1000, device="meta")
        view = first.view(10, 100)
        second = first + 1
        del second
        third = torch.zeros(500, device="meta")
    assert alive.peak == 8000
    assert alive.now == 6000
    del first, view, third
    assert alive.now == 0
