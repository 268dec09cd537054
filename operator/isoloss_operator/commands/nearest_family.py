"""The nearest family of proxies for a checkpoint of a family that isoloss does not train.

Its sizes are read under the names that families give them. The layers of its proxies are those of another family, with
about as many parameters, and `differences` says what that leaves out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from isoloss import formatting
from isoloss_operator.planning import models


@dataclass(frozen=True)
class Nearest:
    """What stands for a checkpoint's architecture."""

    model_type: str
    """The checkpoint's own."""
    config: dict[str, Any]
    """Of the family that stands for it."""
    differences: tuple[str, ...]
    """What proxies of that family do otherwise, as phrases."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """For people, on the terminal and in the manifest."""
        family = self.config["model_type"]
        return (
            f"isoloss cannot train {self.model_type}: the proxies are {family}, the nearest family, with the checkpoint's sizes.",
            f"They have {'; '.join(self.differences)}.",
            f"Whether laws of {family} hold for {self.model_type} was not measured: try learning rates around the answer.",
        )


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What of a config's own words is written into comments of a manifest, where a line break would end them."""
_NAMES: Final[Mapping[str, str]] = {
    "hidden_size": "n_embd d_model",
    "num_hidden_layers": "n_layer n_layers num_layers",
    "num_attention_heads": "n_head n_heads num_heads",
    "num_key_value_heads": "num_kv_heads kv_n_heads",
    "intermediate_size": "n_inner ffn_dim ffn_hidden_size",
    "moe_intermediate_size": "expert_ffn_hidden_size",
    "max_position_embeddings": "n_positions max_seq_len seq_length n_ctx",
    "num_experts": "num_local_experts n_routed_experts moe_num_experts",
    "num_experts_per_tok": "moe_k num_experts_per_token moe_topk moe_top_k",
    "hidden_act": "activation_function hidden_activation activation",
    "rms_norm_eps": "layer_norm_eps layer_norm_epsilon norm_epsilon",
}
"""Other names of a setting, in the order in which they are looked for."""
_NUMBERS: Final = ("initializer_range", "rms_norm_eps", "rope_theta")
_KEPT: Final = f"vocab_size hidden_act head_dim {' '.join(_NUMBERS)}"
_ACTIVATIONS: Final = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
_WITHOUT_POSITIONS: Final = 131_072
"""Positions of proxies for a model of states, which has no most."""
COUNT_TOLERANCE: Final = 0.1
"""Share of the layers up to which a count by sizes is left as it is."""
TO_BUILD: Final = "isoloss with the extra trainer"
_USUAL_POSITIONS: Final = 2048
"""Those of the families whose published configs leave them out."""

_CAUSAL: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""How transformers' names of them end; the last are of models that read images, too."""

_PHRASES: Final[Mapping[str, str]] = {
    "caps": "norms of queries and keys instead of soft caps on attention scores and logits",
    "learned": "rotary instead of learned positions",
    "alibi": "rotary positions instead of ALiBi",
    "norm": "RMSNorm instead of LayerNorm, without biases",
    "two": "gated feed-forwards of three matrices instead of two, two thirds as wide",
    "parallel": "attention and feed-forward one after the other instead of side by side",
    "scaled": "logits without a scale",
    "embeddings": "embeddings without a scale",
}
_DIFFERENCES: Final[Mapping[str, str]] = {
    own: features
    for features, kinds in {
        "embeddings": "gemma",
        "caps": "gemma2",
        "learned norm two": "gpt2 gpt_bigcode gpt_neo opt biogpt",
        "alibi norm two": "bloom mpt",
        "parallel norm two": "falcon gptj gpt_neox phi codegen",
        "parallel norm scaled": "cohere cohere2",
        "norm two": "starcoder2 nemotron persimmon jais2",
        "two": "apertus arcee",
        "norm": "olmo stablelm",
    }.items()
    for own in kinds.split()
}
"""By model type. Of others only sizes are known."""
_ALIKE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    **dict.fromkeys(("qwen3_vl_text",), "qwen3"),
}
"""Text decoders that differ from this family in positions of images alone."""


def nearest(whole: Mapping[str, Any]) -> Nearest:
    """For the config.json of a checkpoint whose family has no proxies of its own.

    Raises UnsupportedModel if it is no causal language model, or has no sizes that are read.
    """
    _require_causal(whole)
    text, given = whole.get("text_config"), dict(whole)
    for part in (whole.get("attn_config"), whole.get("ffn_config")):
        given = {**(part if isinstance(part, Mapping) else {}), **given}
    given |= text if isinstance(text, Mapping) else {}
    own = given.get("model_type")
    if not isinstance(own, str) or not _NAME.fullmatch(own):
        raise models.UnsupportedModel(
            "model_type", f"must be a name such as gpt2, not {own!r:.60}"
        )
    given = {key: value for key, value in given.items() if value is not None}
    for key, names in _NAMES.items():
        found = [given[name] for name in (key, *names.split()) if name in given]
        given |= {key: found[0]} if found else {}
    for key in _NUMBERS:
        models.ConfigReader(given).number(key)
    features = _DIFFERENCES.get(own, "").split()
    if given.get("use_parallel_residual", given.get("parallel_attn")) is False:
        features = [each for each in features if each != "parallel"]
    if own == "falcon" and given.get("alibi") is True:
        features.append("alibi")
    phrases = [_PHRASES[each] for each in features]
    if own in _ALIKE:
        phrases.append("no positions of images")
    elif own not in _DIFFERENCES:
        phrases.append(f"rotary positions, RMSNorm and gated feed-forwards, whatever {own} has")
    if own == "gemma2":
        config = _gemma(given)
    elif own in _ALIKE:
        keys = models.known_keys(_ALIKE[own]) - {"rope_scaling", "rope_parameters"}
        config = {key: given[key] for key in sorted(keys) if key in given}
        config["model_type"] = _ALIKE[own]
    else:
        config, more = _plain(given, gated="two" not in features)
        phrases += more
    if own not in _DIFFERENCES and own not in _ALIKE:
        config, counted = _counted(own, config, _built(whole))
        phrases.append(counted)
    return Nearest(own, config, tuple(phrases))


def _counted(own: str, config: dict[str, Any], built: int | None) -> tuple[dict[str, Any], str]:
    """The config and a phrase. Of a dense model it gets as many layers as have about the parameters that transformers builds."""
    layers, counts = config["num_hidden_layers"], models.parameter_counts(models.completed(config))
    # Of a mixture the experts, and not the layers, may be as many as another family has: its active parameters would fall, too.
    if built is not None and counts.body_total == counts.body_active:
        config = _as_large(config, built)
        counts = models.parameter_counts(models.completed(config))
    active, every = formatting.count(counts.active), formatting.count(counts.total)
    now = config["num_hidden_layers"]
    depth = f" ({now} layers for its {layers})" if now != layers else ""
    if built is None:
        how = "counted by its sizes, which may be off by a factor of two"
        if find_spec("transformers") is None:
            how += f": {TO_BUILD} counts what transformers builds"
    elif 0.5 < counts.total / built < 2.0:
        how = f"for the {formatting.count(built)} that transformers builds"
    else:
        raise models.UnsupportedModel(
            "model_type",
            f"{own}: transformers builds {formatting.count(built)} parameters, layers of {config['model_type']} with its sizes "
            f"have {every}: write the manifest by hand",
        )
    return config, f"{active} active parameters and {every} in all{depth}, {how}"


def _built(whole: Mapping[str, Any]) -> int | None:
    """Parameters of the model that transformers builds, without weights; None where it is not installed, or builds none."""
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        return None
    try:
        given = {key: value for key, value in whole.items() if key != "auto_map"}
        config = AutoConfig.for_model(given.pop("model_type"), **given).get_text_config()
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 (settings of another version)
        return None
    return int(sum(each.numel() for each in model.parameters()))


def _as_large(config: dict[str, Any], total: int) -> dict[str, Any]:
    """With as many layers as have about so many parameters in all."""
    counts, layers = models.parameter_counts(models.completed(config)), config["num_hidden_layers"]
    outside = counts.head + counts.embedding
    wanted = max(1, round(layers * (total - outside) / (counts.total - outside)))
    if abs(wanted / layers - 1) < COUNT_TOLERANCE:
        return config
    kinds = config.get("layer_types")
    listed = {} if kinds is None else {"layer_types": (kinds * (1 + wanted // layers))[:wanted]}
    return {**config, "num_hidden_layers": wanted, **listed}


def _require_causal(whole: Mapping[str, Any]) -> None:
    """Raises UnsupportedModel for encoders, models with one, and models of anything but text."""
    text = whole.get("text_config")
    parts = [whole, text] if isinstance(text, Mapping) else [whole]
    if any(part.get("is_encoder_decoder") for part in parts):
        raise models.UnsupportedModel(
            "is_encoder_decoder", "is true: only causal language models are measured and trained"
        )
    named = whole.get("architectures")
    names = [str(each) for each in named] if isinstance(named, list) else []
    if not names:
        message = "is missing: it names a causal language model, such as GPT2LMHeadModel"
        raise models.UnsupportedModel("architectures", message)
    if not any(name.endswith(_CAUSAL) for name in names):
        message = f"{', '.join(names)} is not a causal language model, the only kind that is measured and trained"
        raise models.UnsupportedModel("architectures", message)


def _gemma(given: Mapping[str, Any]) -> dict[str, Any]:
    """gemma2's layers are gemma3's but for their caps; every second one has a window."""
    family = models.FAMILIES["gemma3_text"]
    kept = f"{_KEPT} hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size"
    keys = f"{kept} max_position_embeddings {family.kept} layer_types".split()
    theta = given.get("rope_theta", 10_000.0)
    return {
        "model_type": "gemma3_text",
        "tie_word_embeddings": True,
        "sliding_window_pattern": 2,
        "rope_theta": theta,
        "rope_local_base_freq": theta,
        **{key: given[key] for key in keys if key in given},
    }


def _plain(given: Mapping[str, Any], *, gated: bool) -> tuple[dict[str, Any], list[str]]:
    """Llama's layers, or those of the family that has such windows or experts, and what they leave out."""
    reader, phrases = models.ConfigReader(given), []
    hidden, layers = reader.count("hidden_size"), reader.count("num_hidden_layers")
    config = {key: given[key] for key in _KEPT.split() if key in given}
    if config.get("hidden_act") not in _ACTIVATIONS:
        config["hidden_act"] = "silu"
    parameters = given.get("rope_parameters")
    if isinstance(parameters, Mapping) and "rope_theta" in parameters:
        config["rope_theta"] = parameters["rope_theta"]
    has_heads = "num_attention_heads" in given and "state_size" not in given
    if has_heads:
        heads = reader.count("num_attention_heads")
        width: float = _width(given, reader, hidden)
        is_multi_query = given.get("multi_query") and not given.get("new_decoder_architecture")
        key_values = 1 if is_multi_query else reader.count("num_key_value_heads", heads)
    else:
        heads = key_values = _heads(hidden)
        config.pop("head_dim", None)
        layers, width = max(1, layers // 2), 8 * hidden // 3
        phrases.append("one layer of attention and feed-forward for two layers of states")
    if not gated:
        width = 2 * width / 3
    usual = _USUAL_POSITIONS if has_heads else _WITHOUT_POSITIONS
    config |= {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_values,
        "intermediate_size": max(16, 16 * round(width / 16)),
        "max_position_embeddings": given.get("max_position_embeddings", usual),
        "tie_word_embeddings": given.get("tie_word_embeddings", True),
    }
    kinds = [*map(str, reader.by_layer("layer_types", layers))] if has_heads else []
    if not all(map(_NAME.fullmatch, kinds)):
        raise models.UnsupportedModel("layer_types", "must be names such as full_attention")
    if has_heads and "num_experts" in given and reader.count("num_experts") > 1:
        found = _mixture(given, reader)
        phrases.append(f"the experts and the routing of {found['model_type']}")
    else:
        found = _windows(given, kinds, layers)
    own = {"full_attention", *(["sliding_attention"] if "sliding_window" in found else [])}
    if others := sorted({*kinds} - own):
        phrases.append(f"full attention instead of layers of other kinds ({', '.join(others)})")
    return {**config, **found}, phrases


def _heads(hidden: int) -> int:
    for size in (128, 64, 96, 80, 32, 16):
        if hidden % size == 0:
            return hidden // size
    raise models.UnsupportedModel(
        "hidden_size", f"{hidden} is not a multiple of a usual head size"
    )


def _width(given: Mapping[str, Any], reader: models.ConfigReader, hidden: int) -> int:
    if "intermediate_size" in given:
        return reader.count("intermediate_size")
    return int((reader.number("expansion_ratio") or 4) * hidden)


def _mixture(given: Mapping[str, Any], reader: models.ConfigReader) -> dict[str, Any]:
    width = reader.count("moe_intermediate_size", _width(given, reader, given["hidden_size"]))
    shared = reader.count_or_zero("shared_expert_intermediate_size", 0)
    named = "num_shared_experts" if "num_shared_experts" in given else "n_shared_experts"
    count, chosen = reader.count("num_experts"), reader.count("num_experts_per_tok")
    found = {"num_experts_per_tok": chosen, "moe_intermediate_size": width}
    if always := reader.count_or_zero(named, 0) or round(shared / width):
        routed = {"n_routed_experts": count, "n_shared_experts": always}
        groups = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}
        return {"model_type": "glm4_moe", **found, **routed, **groups}
    return {"model_type": "qwen3_moe", **found, "num_experts": count, "norm_topk_prob": True}


def _windows(given: Mapping[str, Any], kinds: list[str], layers: int) -> dict[str, Any]:
    window = given.get("sliding_window")
    if not isinstance(window, int) or given.get("use_sliding_window") is False:
        return {"model_type": "llama"}
    period = given.get("sliding_window_pattern")
    if not kinds and isinstance(period, int) and 1 < period <= layers:
        kinds = [
            "full_attention" if (n + 1) % period == 0 else "sliding_attention"
            for n in range(layers)
        ]
    if not kinds:
        return {"model_type": "mistral", "sliding_window": window}
    if not {*kinds} <= {"full_attention", "sliding_attention"}:
        return {"model_type": "llama"}
    head = given.get("head_dim", given["hidden_size"] // given["num_attention_heads"])
    shape = {"use_sliding_window": True, "sliding_window": window, "layer_types": kinds}
    return {"model_type": "qwen3", "head_dim": head, **shape}
