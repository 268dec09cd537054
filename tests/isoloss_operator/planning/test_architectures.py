"""Parameter counts: closed forms against figures that others published or built."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity

from isoloss_operator.cluster.pod_templates import merge
from isoloss_operator.commands.costs import planned
from isoloss_operator.commands.derived_proxies import NoDerivedProxy, derive_proxy
from isoloss_operator.planning.models import UnsupportedModel, parameter_counts, unknown_keys
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support.models import SHAPES, TOYS, example_model
from tests.support.published_configs import PUBLISHED, QWEN3_30B_A3B

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MOE_KEYS = {"num_experts_per_tok": 2, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("name", "body", "head"),
    [
        ("dense-100m", 86_114_304, 100_663_296),
        ("dense-500m", 471_859_200, 167_772_160),
    ],
)
def test_the_dense_examples_have_about_the_published_counts(
    name: str, body: int, head: int
) -> None:
    """Within 1.5% of body 85 M and head 101 M, and of body 476 M and head 168 M."""
    counts = parameter_counts(example_model(name))
    assert (counts.body_active, counts.body_total, counts.head) == (body, body, head)
    assert counts.embedding == head
    published = {"dense-100m": 84_934_656, "dense-500m": 475_791_360}[name]
    assert body == pytest.approx(published, rel=0.015)


@pytest.mark.parametrize("name", ["dense-100m", "dense-500m"])
def test_the_dense_examples_group_their_queries(name: str) -> None:
    """As the paper's dense model; feed-forward widths are multiples of 128."""
    config = example_model(name)
    assert config["num_attention_heads"] > config["num_key_value_heads"] == 2
    assert config["intermediate_size"] % 128 == 0


@pytest.mark.parametrize("name", ["moe-100m", "moe-500m"])
def test_the_mixtures_have_the_papers_proportions(name: str) -> None:
    """Head sizes 128/64/128; feed-forward 2 h, experts h/3, ranks h/2 and h/6 but for rounding."""
    config = example_model(name)
    hidden = config["hidden_size"]
    sizes = [config[f"{part}_head_dim"] for part in ("qk_nope", "qk_rope", "v")]
    assert sizes == [128, 64, 128]
    assert config["intermediate_size"] == 2 * hidden
    assert config["moe_intermediate_size"] == pytest.approx(hidden / 3, rel=0.06)
    assert config["q_lora_rank"] == hidden // 2
    assert config["kv_lora_rank"] == pytest.approx(hidden / 6, rel=0.11)
    assert config["num_experts_per_tok"] == 8
    assert config["first_k_dense_replace"] == config["n_shared_experts"] == 1


@pytest.mark.parametrize(("name", "body"), [("moe-100m", 85e6), ("moe-500m", 476e6)])
def test_the_mixtures_have_about_the_active_size_of_their_dense_twins(
    name: str, body: float
) -> None:
    """Within 3%, and with several times as many parameters in all."""
    counts = parameter_counts(example_model(name))
    assert counts.body_active == pytest.approx(body, rel=0.03)
    assert counts.body_total > 5 * counts.body_active


@pytest.mark.parametrize(("name", "active"), [("dense-tiny", 0.15e6), ("dense-small", 0.7e6)])
def test_the_toys_have_about_the_size_they_promise(name: str, active: float) -> None:
    """Head included, with a vocabulary of 1024."""
    assert parameter_counts(example_model(name)).active == pytest.approx(active, rel=0.06)


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"model_type": "gpt2"}, "model_type", "not supported; use one of llama, mistral"),
        ({"model_type": None}, "model_type", "not supported; use one of llama"),
        ({"hidden_size": None}, "hidden_size", "is required"),
        ({"hidden_size": "64"}, "hidden_size", "positive integer, not '64'"),
        ({"hidden_size": True}, "hidden_size", "positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "positive integer"),
        ({"hidden_size": 2**40}, "hidden_size", "positive integer"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "3 does not divide 4 heads"),
        (
            {"model_type": "mistral", "num_attention_heads": 5, "num_key_value_heads": 5},
            "num_attention_heads",
            "set head_dim",
        ),
        (
            {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 16},
            "num_attention_heads",
            "5 does not divide hidden_size 64, as transformers asks of llama whatever head_dim is",
        ),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "true or false"),
        (
            {**MOE_KEYS, "model_type": "mixtral", "num_local_experts": 1},
            "num_experts_per_tok",
            "2 is more than 1 experts",
        ),
        (
            {"model_type": "mistral", "num_key_value_heads": None},
            "num_key_value_heads",
            "required",
        ),
    ],
)
def test_what_can_not_be_counted_is_refused_by_name(
    changes: dict[str, Any], field: str, says: str
) -> None:
    """A wrong N is a wrong law."""
    with pytest.raises(UnsupportedModel, match=says) as refusal:
        parameter_counts({**LLAMA, **changes})
    assert refusal.value.field == field


def test_misspelt_keys_are_found_with_a_suggestion() -> None:
    """transformers would ignore them and train a default."""
    found = unknown_keys({**LLAMA, "hiden_size": 3, "auto_map": {}})
    assert found["hiden_size"] == "is not a setting of llama; did you mean hidden_size?"
    assert set(found) == {"hiden_size", "auto_map"}


@pytest.mark.parametrize("name", SHAPES + TOYS)
def test_the_examples_are_valid_and_know_their_keys(name: str) -> None:
    config = example_model(name)
    assert unknown_keys(config) == {}
    assert parameter_counts(config).active > 0
    assert config["max_position_embeddings"] == 8192


# ------------------------------------------------------------------------------ hostile sizes


@pytest.mark.parametrize("published", [LLAMA, *PUBLISHED.values()])
def test_hundreds_of_millions_of_layers_are_multiplied_not_listed(
    published: dict[str, Any],
) -> None:
    """A list of them takes 3 GB, and with it every other tenant's operator."""
    layers = 400_000_000
    one, two, many = (
        parameter_counts({**published, "num_hidden_layers": count, "no_rope_layers": None})
        for count in (1000, 2000, layers)
    )
    per_layer = (two.body_active - one.body_active) // 1000
    assert many.body_active == one.body_active + (layers - 1000) * per_layer


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("dense", [[], [0], [1, 2, 5, 99, -1]])
def test_dense_layers_among_mixtures_are_counted_as_if_one_by_one(
    step: int, dense: list[int]
) -> None:
    config = {**QWEN3_30B_A3B, "decoder_sparse_step": step, "mlp_only_layers": dense}

    def total(layers: int) -> int:
        return parameter_counts({**config, "num_hidden_layers": layers}).body_total

    added = [total(n + 1) - total(n) for n in range(1, 12)]
    is_dense = [n in dense or (n + 1) % step != 0 for n in range(1, 12)]
    mixture, plain = max(added), min(added)
    assert [mixture if not flag else plain for flag in is_dense] == added


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads"])
def test_a_checkpoint_of_more_layers_or_heads_than_any_is_refused_before_its_shapes_are_tried(
    key: str,
) -> None:
    config = {**LLAMA, "hidden_size": 65_536, "num_key_value_heads": 4, key: 16_384}
    with pytest.raises(NoDerivedProxy, match=f"config.json: {key}: 16,384 is more than 512"):
        derive_proxy(config, 1_000_000)


EXAMPLES = Path(__file__).parents[3] / "crds" / "examples"


@pytest.mark.parametrize("name", ["dense-sweep", "first-sweep", "moe-sweep", "search-sweep"])
def test_an_examples_limit_holds_what_training_and_resuming_take(name: str) -> None:
    spec = parse_sweep_spec(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"])
    for size in planned(spec).sizes:
        (own,) = (proxy.pod_template for proxy in spec.proxies if proxy.name == size.name)
        template: dict[str, Any] = merge(spec.pod_template or {}, own or {})
        (container,) = template["spec"]["containers"]
        limit = parse_quantity(container["resources"]["limits"]["memory"])
        needed = max(size.memory.host_build, *size.memory.host_train)
        assert needed <= limit <= 3 * needed, size.name
