"""Memory counted without a GPU: every shape of the GPU benchmarks works, and what its parts take."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


from benchmarks.trainer_memory import (
    GPU_PRESETS,
    LENGTH,
    PAGE,
    bytes_per_logit,
    bytes_per_parameter,
    check_shapes,
    fits_table,
    kept_by_compiled_layers,
    model_of,
    plain_peak,
)
from isoloss_contract.memory import GRADIENT_BYTES, STATE_BYTES
from isoloss_trainer.memory import footprint
from tests.support.compilers import needs_cxx_compiler


@pytest.mark.whole
@needs_cxx_compiler
def test_the_compiled_loss_keeps_six_bytes_per_logit() -> None:
    """The float32 logits and their bfloat16 gradient, and nothing else of their size."""
    assert bytes_per_logit() == 6


def test_a_learner_holds_as_many_bytes_per_parameter_as_planned() -> None:
    """Beyond that, what is no parameter."""
    planned = STATE_BYTES + GRADIENT_BYTES
    assert planned <= bytes_per_parameter() < 1.02 * planned


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(name, marks=() if name == "dense-100m" else pytest.mark.whole)
        for name in GPU_PRESETS
    ],
)
def test_the_plan_counts_what_the_compiler_keeps_within_a_tenth(preset: str) -> None:
    """Of the layers: the ends of the model and the head are counted beside them."""
    model = model_of(preset)
    planned = footprint(model.network, "bf16").of_sequences(1, LENGTH, recompute=False)
    kept = kept_by_compiled_layers(model)
    assert 0.9 * planned < kept < 1.1 * planned
    assert plain_peak(model) > kept


@pytest.mark.slow
def test_every_planned_micro_batch_of_a_preset_trains_on_the_meta_device() -> None:
    planned = check_shapes("dense-100m")
    assert planned[False]
    assert planned[True]


def test_the_reference_page_says_what_fits_now() -> None:
    """`make bench-trainer ARGS=--dry` writes it."""
    assert fits_table() in PAGE.read_text()
