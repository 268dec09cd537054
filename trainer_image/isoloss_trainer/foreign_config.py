"""What a checkpoint's config.json says that transformers does not read.

transformers takes a setting that it does not know without a word and computes with its default: another model than the one
that was trained, with a loss that looks like any other.
"""

import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from isoloss_contract import model_settings

SYNONYMS: Final = (
    ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "norm_epsilon"),
    ("hidden_act", "hidden_activation", "activation_function"),
    ("rope_theta", "rotary_emb_base", "rotary_base", "rope_base"),
    ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "num_selected_experts"),
)  # fmt: skip
"""Names of one setting, of which each family reads one or two."""
ONLY: Final = {
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "glm4_moe": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
}
"""Settings that transformers takes for granted, and the value that it computes with."""


def contradiction(described: Mapping[str, Any], config: Any, sequence_length: int) -> str | None:
    """Why transformers would build another model than the one that config.json describes, for sequences of so many tokens;
    None if nothing shows it.

    `described`: config.json; `config`: what transformers makes of it.
    """
    text = described.get("text_config")
    settings, read = text if isinstance(text, dict) else described, config.get_text_config()
    found = _other_architecture(described, config) or _rope(settings, read)
    return found or next(_unread(settings, read, sequence_length), None)


def uncapped(network: Any) -> str | None:
    """Why a model around the one of its text_config, which reads images too, computes other logits than that one; None if it
    does not. Its own class has to name a cap on logits."""
    text = network.config.get_text_config()
    if text is network.config:
        return None
    source = inspect.getsource(type(network))
    for name in model_settings.LOGIT_CAPS:
        cap = getattr(text, name, None)
        if cap and name not in source:
            kind = type(network).__name__
            return f"{name} is {cap!r} in text_config, and transformers' {kind} caps nothing: give the text's model alone"
    return None


def _other_architecture(described: Mapping[str, Any], config: Any) -> str | None:
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, found = config.model_type, described.get("architectures")
    named = found if isinstance(found, list) else []
    families = {
        model_type_to_module_name(theirs)
        for theirs, model in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
        if model in named
    }
    if not families or model_type_to_module_name(kind) in families:
        return None
    return (
        f"architectures names {named[0]}, and model_type is {kind}, by which the weights would be read: correct the one that "
        "is wrong"
    )


def _rope(settings: Mapping[str, Any], config: Any) -> str | None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if kind not in (*ROPE_INIT_FUNCTIONS, "default", None):
        return f"transformers has no rope_type {kind!r}: it has {', '.join(ROPE_INIT_FUNCTIONS)}"
    return model_settings.rope_contradiction(settings)


def _unread(settings: Mapping[str, Any], config: Any, sequence_length: int) -> Iterator[str]:
    """Settings that change what a model computes, and that the source of this one does not name."""
    kind, source = config.model_type, _source(config)
    given = {name for name, each in settings.items() if each is not None and name not in source}
    for names in SYNONYMS:
        # Generic code reads rope_theta.
        read = [name for name in names if name in source or name == "rope_theta"]
        others = given.intersection(names) - set(read)
        if not read:
            continue
        given -= others  # what it computes with is compared here
        value = _value(config, read[0])
        for name in sorted(others if not any(each in settings for each in read) else ()):
            if value is not None and value != settings[name]:
                yield (
                    f"{name} is {settings[name]!r}, which transformers' model of type {kind} does not read: it reads {read[0]}, "
                    f"which would be {value!r}. Rename it"
                )
    for name in sorted(given):
        if model_settings.has_effect(name, settings, sequence_length):
            yield model_settings.unread(name, settings[name], kind)
    for name, value in ONLY.get(kind, {}).items():
        if settings.get(name) not in (None, value):
            yield f"{name} is {settings[name]!r}, and transformers' model of type {kind} computes with {value!r} alone"


def _source(config: Any) -> str:
    """Of a family's configuration and of its model, which some families take from another one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    home = type(config).__module__
    own = home.replace(".configuration_", ".modeling_")
    model = own if find_spec(own) else MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__module__
    return "".join(inspect.getsource(import_module(name)) for name in (home, model))


def _value(config: Any, name: str) -> Any:
    found = getattr(config, name, None)
    return (getattr(config, "rope_parameters", None) or {}).get(name) if found is None else found
