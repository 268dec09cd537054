"""Proxies derived from published checkpoints, as transformers builds them."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from isoloss_contract.records import EvaluationConfig, Outcome
from isoloss_operator.commands.derived_proxies import NoDerivedProxy, derive_proxy
from isoloss_operator.commands.nearest_family import nearest
from isoloss_operator.planning.models import (
    WRAPPERS,
    checkpoint_model,
    completed,
    parameter_counts,
)
from isoloss_trainer.export import export
from isoloss_trainer.model import build_network, check_fits, count_parameters, model_config
from tests.isoloss_trainer.builders import VOCABULARY, quiet, uri
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.families import FAMILIES
from tests.isoloss_trainer.trained import rows, run
from tests.support.published_configs import NEIGHBOURS, PUBLISHED


@pytest.mark.parametrize("parameters", [200_000_000, 500_000_000])
@pytest.mark.parametrize("name", PUBLISHED)
def test_derived_proxies_have_the_counted_parameters(name: str, parameters: int) -> None:
    config = derive_proxy(PUBLISHED[name], parameters)
    with torch.device("meta"):
        network = build_network(config)
    assert count_parameters(network) == parameter_counts(config)
    length = min(8192, config["max_position_embeddings"])
    check_fits(network.config, vocabulary=config["vocab_size"], sequence_length=length)


def tiny(name: str) -> dict[str, Any]:
    """The least proxy, with a small vocabulary, and windows that its sequences are longer than."""
    short = {"sliding_window": 8, "attention_chunk_size": 8, "num_local_experts": 8}
    published = {key: value for key, value in PUBLISHED[name].items() if key != "auto_map"}
    short = {key: size for key, size in short.items() if published.get(key)}
    return smallest({**published, **short, "vocab_size": VOCABULARY})


def smallest(checkpoint: dict[str, Any]) -> dict[str, Any]:
    for step in range(60):
        try:
            return derive_proxy(checkpoint, int(2e5 * 1.2**step))
        except NoDerivedProxy:
            continue
    raise AssertionError("nothing small")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_derived_proxy_is_trained_and_its_export_is_continued(
    prepared: Prepared, corpus: Path, tmp_path: Path, name: str
) -> None:
    """For two steps each: the second run begins with the weights that the first one ended with; only routing moves on."""
    model, tokenizer = tiny(name), f"{uri(corpus)}/tokenizer"
    evaluation = EvaluationConfig(first_tokens=128, per_decade=4, sequences_per_domain=8)
    given: dict[str, Any] = {"tokens": 256, "evaluation": evaluation, "learning_rate": 3e-3}
    first = prepared.train_task(model=model, **given)
    trained = run(first)
    assert trained.outcome is Outcome.SUCCEEDED
    assert trained.parameters == parameter_counts(model)
    began, ended = rows(first)
    assert ended.loss is not None
    assert began.loss is not None
    assert ended.loss < began.loss
    exported = tmp_path / "exported"
    export(prepared.uri, trained.key, exported, "raw", tokenizer, quiet())
    saved = checkpoint_model(json.loads((exported / "config.json").read_text()))
    assert parameter_counts(saved) == trained.parameters
    weights = {"model": saved, "initial_weights": uri(exported), "learning_rate": 1e-9}
    again = prepared.train_task(**{**given, **weights})
    assert run(again).loss == pytest.approx(trained.loss, abs=5e-3)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_the_nearest_family_has_as_many_parameters_as_the_checkpoint(name: str) -> None:
    """As transformers builds both, to a thousandth; of states, of which two layers make one, to a twentieth."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    published, stands = NEIGHBOURS[name], nearest(NEIGHBOURS[name]).config
    kind = published["model_type"]
    settings = {key: value for key, value in published.items() if key != "model_type"}
    model_class: Any = AutoModelForImageTextToText if "VL" in name else AutoModelForCausalLM
    with torch.device("meta"):
        theirs = count_parameters(model_class.from_config(AutoConfig.for_model(kind, **settings)))
        ours = count_parameters(build_network(completed(stands)))
    tolerance = 0.05 if kind == "mamba" else 1e-3
    assert ours.active == pytest.approx(theirs.active, rel=tolerance)
    if "VL" not in name:
        assert ours.total == pytest.approx(theirs.total, rel=max(tolerance, 4e-3))
        assert bool(ours.embedding) == bool(theirs.embedding)


@pytest.mark.parametrize("kind", ["apertus", "arcee", "biogpt", "codegen", "jais2", "persimmon"])
def test_a_feed_forward_of_two_matrices_is_counted_as_one(kind: str) -> None:
    """With the sizes that transformers takes for it. Of families that nothing is known of, three are counted."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    if kind not in CONFIG_MAPPING:
        pytest.skip("not in this version of transformers")
    described, model_class = CONFIG_MAPPING[kind](), cast("Any", AutoModelForCausalLM)
    with torch.device("meta"):
        theirs = count_parameters(model_class.from_config(described))
    config = {**described.to_dict(), "architectures": ["XForCausalLM"]}
    ours = parameter_counts(completed(nearest(config).config))
    assert ours.total == pytest.approx(theirs.total, rel=4e-3)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_proxy_of_the_nearest_family_is_trained(prepared: Prepared, name: str) -> None:
    model = smallest({**nearest(NEIGHBOURS[name]).config, "vocab_size": VOCABULARY})
    evaluation = EvaluationConfig(first_tokens=128, per_decade=4, sequences_per_domain=8)
    given: dict[str, Any] = {"tokens": 256, "evaluation": evaluation, "learning_rate": 3e-3}
    task = prepared.train_task(model=model, **given)
    trained = run(task)
    assert trained.parameters == parameter_counts(model)
    began, ended = rows(task)
    assert ended.loss < began.loss  # type: ignore[operator]


VISION: dict[str, dict[str, Any]] = {
    "gemma3": {"image_size": 28, "patch_size": 14},
    "mistral3": {"model_type": "pixtral", "head_dim": 16, "image_size": 28, "patch_size": 14},
    "llama4": {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
}


@pytest.mark.parametrize("kind", VISION)
def test_of_a_model_of_images_the_text_decoder_is_measured_and_continued(
    prepared: Prepared, tmp_path: Path, kind: str
) -> None:
    """With the loss that the whole one has."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    untied = {"tie_word_embeddings": False}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    described = AutoConfig.for_model(
        kind,
        text_config={"model_type": WRAPPERS[kind], **FAMILIES[WRAPPERS[kind]], **untied},
        vision_config={**sizes, "num_attention_heads": 2, **VISION[kind]},
        **untied,
    )
    torch.manual_seed(0)
    model_class: Any = AutoModelForImageTextToText
    model_class.from_config(described).save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    saved = json.loads(file.read_text())
    if kind == "mistral3":
        del saved[
            "tie_word_embeddings"
        ]  # as published, where only the weights show that there is no tie
        file.write_text(json.dumps(saved))
    weights = uri(tmp_path / "model")
    measured = prepared.evaluated(weights, tmp_path, sequences_per_domain=8)
    model = checkpoint_model(saved)
    assert measured.parameters.active == parameter_counts(model).active
    given: dict[str, Any] = {
        "model": model,
        "initial_weights": weights,
        "learning_rate": 1e-9,
        "tokens": 256,
    }
    continued = run(prepared.train_task(**given))
    assert continued.loss == pytest.approx(measured.loss, abs=1e-4)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_derived_proxy_computes_as_its_checkpoint_would(name: str) -> None:
    """Positions, windows and norms come from the checkpoint's own settings."""
    published = {key: value for key, value in PUBLISHED[name].items() if key != "auto_map"}
    small = model_config(derive_proxy(published, 200_000_000))
    large = model_config(published)
    for key in ("rope_parameters", "rms_norm_eps", "hidden_act", "sliding_window", "vocab_size"):
        assert getattr(small, key, None) == getattr(large, key, None), key
