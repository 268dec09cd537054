"""An exported point is a model of transformers: it generates, and its loss is the point's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from isoloss_contract.records import ExitCode, PointResult
from isoloss_trainer.__main__ import main
from isoloss_trainer.export import older_names
from isoloss_trainer.termination import Interruption
from isoloss_trainer.train import train
from tests.isoloss_trainer import builders
from tests.isoloss_trainer.conftest import Prepared


def trained(prepared: Prepared, tmp_path: Path, **changes: Any) -> PointResult:
    task = prepared.train_task(tokens=4096, **changes)
    train(task, tmp_path, Interruption(), builders.quiet())
    return prepared.result(task)


def exported(
    prepared: Prepared, corpus: Path, result: PointResult, folder: Path, weights: str
) -> None:
    arguments = ["export", prepared.uri, result.key, str(folder), "--weights", weights]
    assert main([*arguments, "--tokenizer", f"{builders.uri(corpus)}/tokenizer"]) == 0


@pytest.mark.parametrize(
    "model",
    [
        builders.LLAMA,
        {**builders.LLAMA, "tie_word_embeddings": True},
        builders.DEEPSEEK,
        builders.QWEN3_MOE,
    ],
    ids=["dense", "dense, tied", "deepseek_v3", "qwen3_moe"],
)
def test_an_exported_point_has_its_loss_and_generates(
    prepared: Prepared, corpus: Path, tmp_path: Path, model: dict[str, Any]
) -> None:
    result = trained(prepared, tmp_path, model=model)
    for weights, loss in (("raw", result.loss), ("averaged", result.averaged_loss)):
        folder = tmp_path / weights
        exported(prepared, corpus, result, folder, weights)
        measured = prepared.evaluated(folder, tmp_path, sequences_per_domain=8)
        assert measured.same_tokenizer
        assert measured.loss == pytest.approx(loss, abs=1e-5)

    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(tmp_path / "averaged")
    tokenizer = Tokenizer.from_file(str(tmp_path / "averaged" / "tokenizer.json"))
    assert network.config.eos_token_id == prepared.manifest.end_token
    prompt = torch.tensor([tokenizer.encode("Bada").ids])
    written = network.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert written.shape[1] == prompt.shape[1] + 8
    assert tokenizer.decode(written[0].tolist()).startswith("Bada")


LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
            {"rope_theta": 5e5},
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
                }
            },
            {
                "rope_theta": 1e6,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "rope_local_base_freq": 1e4,
            },
        ),
        (
            {
                "model_type": "phi3",
                "original_max_position_embeddings": 16,
                "rope_parameters": {"rope_theta": 1e4, "rope_type": "longrope", **LONG}
                | {"original_max_position_embeddings": 16},
            },
            # transformers 4.57 refuses a fourth setting.
            {"rope_theta": 1e4, "rope_scaling": {"type": "longrope", **LONG}},
        ),
        ({"rope_parameters": {"rope_theta": 2.0}, "rope_theta": 1.0}, {}),
        ({"num_local_experts": 8}, {"num_experts": 8}),
        ({"rope_parameters": None}, {}),
    ],
)
def test_settings_have_their_older_names_beside(
    config: dict[str, Any], found: dict[str, Any]
) -> None:
    assert older_names(config) == found


@pytest.mark.parametrize("model", [builders.LLAMA, builders.QWEN3_MOE], ids=["dense", "qwen3_moe"])
def test_an_export_is_described_in_the_words_of_older_versions_too(
    prepared: Prepared, corpus: Path, tmp_path: Path, model: dict[str, Any]
) -> None:
    """transformers 4.57 takes 10,000 for a rope_theta that it does not find, and needs num_experts."""
    rotation = {"rope_theta": 500_000.0, "rope_type": "linear", "factor": 2.0}
    result = trained(prepared, tmp_path, model={**model, "rope_parameters": rotation})
    exported(prepared, corpus, result, tmp_path / "model", "raw")
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 500_000.0
    assert written["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    if model is builders.QWEN3_MOE:
        assert written["num_experts"] == model["num_experts"]


def test_half_precision_points_are_exported_from_their_master_weights(
    prepared: Prepared, corpus: Path, tmp_path: Path
) -> None:
    result = trained(prepared, tmp_path, precision="bf16")
    exported(prepared, corpus, result, tmp_path / "model", "raw")

    from safetensors.torch import load_file

    weights = load_file(tmp_path / "model" / "model.safetensors")
    norm = weights["lm_head.weight"]
    assert norm.dtype == torch.float32
    assert not torch.equal(norm, norm.bfloat16().float())


def test_what_cannot_be_exported_is_named(
    prepared: Prepared, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = builders.make_tokenizer(tmp_path / "other", builders.documents(10), vocabulary=300)
    released = trained(prepared, tmp_path, task={"release_checkpoints_when_done": True})
    kept = trained(prepared, tmp_path, seed=1)
    cases = [
        ([prepared.uri, "0" * 32, str(tmp_path / "a")], ExitCode.BAD_DATA, "no point"),
        (
            [prepared.uri, released.key, str(tmp_path / "a")],
            ExitCode.BAD_DATA,
            "releaseCheckpoints",
        ),
        ([prepared.uri, kept.key, str(corpus)], ExitCode.BAD_CONFIGURATION, "is not empty"),
        (
            [prepared.uri, kept.key, str(tmp_path / "a"), "--tokenizer", builders.uri(other)],
            ExitCode.BAD_CONFIGURATION,
            "is not the tokenizer",
        ),
    ]
    for arguments, code, words in cases:
        assert main(["export", *arguments]) == code
        assert words in capsys.readouterr().out
    assert not (tmp_path / "a").exists()
