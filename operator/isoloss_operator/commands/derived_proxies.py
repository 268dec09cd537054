"""Proxies derived from a checkpoint's config.json: the same architecture, smaller in width and depth.

Family, head sizes, heads per key-value head, vocabulary, ties, expert layout, windows and position encoding are kept.
Width and depth shrink together, so that the aspect ratio stays about the same; what is a part of the width shrinks with
it, and layers of several kinds stay in their order and shares. docs/reference/checkpoints.md has the rules. A config
that cannot be scaled this way is refused: a law from a proxy of another shape says nothing about the checkpoint.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from isoloss_operator.planning import models
from isoloss_operator.planning.models import (
    ConfigReader,
    attention_shapes,
    head_dim,
    key_value_heads,
    parameter_counts,
)

TOLERANCE = 0.1
"""Maximum relative error of the active parameters."""
MAX_STRETCH = 2.0
"""Maximum factor by which the aspect ratio and the heads per key-value head may change."""
SIZE_WEIGHT = 4.0
"""Weight of a wrong size against a wrong aspect ratio, both as squared logarithms."""
MAX_LAYERS, MAX_HEADS = 512, 512
"""Limits of a checkpoint: its shapes are tried one by one. No published model has half as many."""
MAX_MESSAGE = 400
MAX_SETTING_CHARACTERS = 4096
"""Maximum length of one kept setting as JSON. Longer ones are tables for very long contexts (longrope)."""

DENSE, WINDOWS_FROM = "first_k_dense_replace", "max_window_layers"
"""Numbers of layers: dense ones before those with experts, and those before the ones with windows."""
_KEPT_BY_ALL = (
    "vocab_size hidden_act initializer_range rms_norm_eps tie_word_embeddings rope_theta rope_scaling"
    " rope_parameters max_position_embeddings attention_bias"
)


class NoDerivedProxy(ValueError):
    """No proxy can be derived. `field` is the cause: checkpoint or parameters."""

    def __init__(self, field: str, message: str) -> None:
        shown = message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"
        super().__init__(f"{field}: {shown}")
        self.field = field
        self.message = shown


def derive_proxy(config: Mapping[str, Any], parameters: int) -> dict[str, Any]:
    """The configuration of a proxy with about `parameters` active parameters, head included.

    `config` is the checkpoint's config.json. Chosen is the shape that changes size and proportions least,
    of those within 10% of the size and half to twice the aspect ratio. Raises NoDerivedProxy.
    """
    try:
        checkpoint = _checkpoint(json.dumps(config, sort_keys=True))
    except models.UnsupportedModel as error:
        message = f"config.json: {error.field}: {error.message}"
        raise NoDerivedProxy("checkpoint", message) from error
    if parameters > checkpoint.active:
        raise NoDerivedProxy(
            "parameters",
            f"{parameters:,} is more than the {checkpoint.active:,} active parameters that the "
            "checkpoint itself has",
        )
    kept = _kept_settings(checkpoint)
    shapes = list(_shapes(checkpoint, kept, parameters))
    close = [shape for shape in shapes if abs(shape.active / parameters - 1) <= TOLERANCE]
    if not close:
        raise _nothing_close(checkpoint, shapes, parameters)
    chosen = min(close, key=lambda shape: shape.change(parameters))
    return {**kept, **_sizes(checkpoint, chosen.heads, chosen.layers)}


# ------------------------------------------------------------------------------- the checkpoint


@dataclass(frozen=True)
class _Checkpoint:
    """The checkpoint's architecture."""

    config: Mapping[str, Any]
    kind: str
    active: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int | None
    """None: latent attention, whose head sizes have keys of their own."""
    dense_first: int
    """Dense layers before the mixtures."""
    layer_step: int
    """Layers of a group, such as windowed ones and the one behind them that sees all; depths are multiples of it."""
    window_layers: int | None
    """Layers before those with windows; None: no layers have any by this rule."""
    lists: Mapping[str, list[Any]]
    """What each layer is, by setting; whether it is named, of settings that name layers by number."""
    proportional: Mapping[str, float]
    """Numbers that shrink with the width."""
    counted: dict[tuple[int, int], int] = field(default_factory=dict)
    """Active parameters by heads and layers: shapes of one size are among those of another."""


@lru_cache(maxsize=4)
def _checkpoint(text: str) -> _Checkpoint:
    """Of a config as JSON. Raises UnsupportedModel."""
    given = json.loads(text)
    counts, _ = parameter_counts(given), attention_shapes(given)  # the sizes are sound
    config, kind = models.completed(given), models.model_type(given)
    for key, message in models.unsupported_values(config).items():
        raise models.UnsupportedModel(key, message)
    for key, most in (("num_hidden_layers", MAX_LAYERS), ("num_attention_heads", MAX_HEADS)):
        if config[key] > most:
            raise models.UnsupportedModel(key, f"{config[key]:,} is more than {most}")
    reader, layers = ConfigReader(config), config["num_hidden_layers"]
    is_latent, heads = kind == "deepseek_v3", config["num_attention_heads"]
    family = models.FAMILIES[kind]
    lists = _lists(reader, family, layers)
    periods = (int(p) if p.isdigit() else reader.count(p, 1) for p in family.periods.split())
    has_windows = WINDOWS_FROM in family.keys and reader.flag("use_sliding_window", default=False)
    numbers = {key: reader.number(key) for key in family.proportional.split()}
    return _Checkpoint(
        config=config,
        kind=kind,
        active=counts.active,
        hidden=config["hidden_size"],
        layers=layers,
        heads=heads,
        kv_heads=heads if is_latent else key_value_heads(reader, kind),
        head_dim=None if is_latent else head_dim(reader, kind),
        dense_first=reader.count_or_zero(DENSE, 0),
        layer_step=math.lcm(*periods, *(_period(each) or 1 for each in lists.values())),
        window_layers=reader.count_or_zero(WINDOWS_FROM, 28) if has_windows else None,
        lists=lists,
        proportional={key: number for key, number in numbers.items() if number is not None},
    )


def _lists(reader: ConfigReader, family: models.Family, layers: int) -> dict[str, list[Any]]:
    found = {key: reader.by_layer(key, layers) for key in family.by_layer.split()}
    for key in family.layer_numbers.split():
        if named := reader.indices(key):
            found[key] = [layer in named for layer in range(layers)]
    # What transformers takes without a list if there is no window.
    kinds = found.get("layer_types", [])
    if "use_sliding_window" in family.keys and all(kind == "full_attention" for kind in kinds):
        found.pop("layer_types", None)
    return {key: values for key, values in found.items() if values}


def _period(values: Sequence[Any]) -> int | None:
    """The length of the pattern that a list repeats, at least twice."""
    lengths = range(1, len(values) // 2 + 1)
    repeats = (n for n in lengths if all(a == b for a, b in zip(values, values[n:], strict=False)))
    return next(repeats, None)


def _at_depth(values: Sequence[Any], layers: int) -> list[Any]:
    """A pattern goes on; of another list each layer is what the checkpoint's at the same share of its depth is."""
    if period := _period(values):
        return [values[layer % period] for layer in range(layers)]
    return [values[int((layer + 0.5) * len(values) / layers)] for layer in range(layers)]


# ------------------------------------------------------------------------------------ the shapes


@dataclass(frozen=True)
class _Shape:
    heads: int
    layers: int
    active: int
    aspect: float
    """Aspect ratio, relative to the checkpoint's."""
    group: float
    """Heads per key-value head, relative to the checkpoint's if there are so many heads."""

    def change(self, parameters: int) -> float:
        """Distance from the requested size and the checkpoint's proportions, 0 at best."""
        missed = math.log(self.active / parameters)
        return SIZE_WEIGHT * missed**2 + math.log(self.aspect) ** 2 + math.log(self.group) ** 2


def _shapes(checkpoint: _Checkpoint, kept: Mapping[str, Any], parameters: int) -> Iterator[_Shape]:
    """Shapes that keep the proportions, for each width up to the first that is too large."""
    for heads in range(1, math.ceil(MAX_STRETCH * checkpoint.heads) + 1):
        _, group = _kv_heads(checkpoint, heads)
        if 1 / MAX_STRETCH <= group <= MAX_STRETCH:
            yield from _of_width(checkpoint, kept, heads, group, parameters)
            vocabulary = _width(checkpoint, heads) * kept["vocab_size"]
            if vocabulary > (1 + TOLERANCE) * parameters:
                return


def _of_width(
    checkpoint: _Checkpoint, kept: Mapping[str, Any], heads: int, group: float, parameters: int
) -> Iterator[_Shape]:
    """Shapes of a width up to the first that is too deep. Deeper ones are larger: of those far too small only the largest."""

    def active(layers: int) -> int:
        if (heads, layers) not in checkpoint.counted:
            config = {**kept, **_sizes(checkpoint, heads, layers)}
            checkpoint.counted[heads, layers] = parameter_counts(config).active
        return checkpoint.counted[heads, layers]

    width = _width(checkpoint, heads)
    depths = list(_depths(checkpoint, width))
    enough = bisect_left(depths, (1 - TOLERANCE) * parameters, key=active)
    for layers in depths[max(0, enough - 1) :]:
        aspect = (width / layers) / (checkpoint.hidden / checkpoint.layers)
        yield _Shape(heads, layers, active(layers), aspect, group)
        if active(layers) > (1 + TOLERANCE) * parameters:
            return


def _width(checkpoint: _Checkpoint, heads: int) -> int:
    if (
        models.FAMILIES[checkpoint.kind].has_equal_heads
        and checkpoint.hidden % checkpoint.heads == 0
    ):
        return checkpoint.hidden // checkpoint.heads * heads
    return _rounded(checkpoint.hidden * heads / checkpoint.heads)


def _depths(checkpoint: _Checkpoint, width: int) -> Iterator[int]:
    """Numbers of layers for a width that leave the aspect ratio within bounds."""
    proportional = width * checkpoint.layers / checkpoint.hidden
    deepest = min(
        math.floor(MAX_STRETCH * proportional), math.ceil(MAX_STRETCH * checkpoint.layers)
    )
    for layers in range(max(1, math.ceil(proportional / MAX_STRETCH)), deepest + 1):
        is_whole = layers % checkpoint.layer_step == 0 or layers == checkpoint.layers
        if (
            is_whole
            and layers > _dense_layers(checkpoint, layers)
            and _has_all(checkpoint, layers)
        ):
            yield layers


def _has_all(checkpoint: _Checkpoint, layers: int) -> bool:
    """Whether layers of each kind are left."""
    lists = checkpoint.lists.values()
    return all({*map(str, _at_depth(each, layers))} == {*map(str, each)} for each in lists)


def _dense_layers(checkpoint: _Checkpoint, layers: int) -> int:
    if checkpoint.dense_first == 0:
        return 0
    return max(1, round(checkpoint.dense_first * layers / checkpoint.layers))


def _kv_heads(checkpoint: _Checkpoint, heads: int) -> tuple[int, float]:
    """Key-value heads for so many heads, and how their share differs from the checkpoint's."""
    wanted = min(checkpoint.heads // checkpoint.kv_heads, heads)
    divisors = [group for group in range(1, heads + 1) if heads % group == 0]
    group = min(divisors, key=lambda group: abs(math.log(group / wanted)))
    return heads // group, group / wanted


def _rounded(width: float) -> int:
    """The nearest multiple of 64, or of 16 below 512: tensor cores need multiples of 8 or more."""
    step = 64 if width >= 512 else 16
    return max(step, step * round(width / step))


def _sizes(checkpoint: _Checkpoint, heads: int, layers: int) -> dict[str, Any]:
    width, (kv_heads, _) = _width(checkpoint, heads), _kv_heads(checkpoint, heads)
    config, family = checkpoint.config, models.FAMILIES[checkpoint.kind]
    sizes: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }
    for key in family.widths.split():
        if (original := config.get(key)) is not None:
            sizes[key] = _rounded(original * width / checkpoint.hidden)
    for key, number in checkpoint.proportional.items():
        sizes[key] = number * width / checkpoint.hidden
    if checkpoint.head_dim is not None:
        sizes["head_dim"] = checkpoint.head_dim
    else:
        # Absent would mean transformers' default rank; null means no low-rank queries.
        sizes.setdefault("q_lora_rank", None)
    if DENSE in family.keys:
        sizes[DENSE] = _dense_layers(checkpoint, layers)
    if checkpoint.window_layers is not None:
        sizes[WINDOWS_FROM] = round(checkpoint.window_layers * layers / checkpoint.layers)
    for key, values in checkpoint.lists.items():
        found = _at_depth(values, layers)
        is_numbers = key in family.layer_numbers.split()
        sizes[key] = [n for n, named in enumerate(found) if named] if is_numbers else found
    return sizes


def _kept_settings(checkpoint: _Checkpoint) -> dict[str, Any]:
    config, family = checkpoint.config, models.FAMILIES[checkpoint.kind]
    kept: dict[str, Any] = {"model_type": checkpoint.kind}
    windows = "use_sliding_window sliding_window" if config.get("use_sliding_window") else ""
    for key in f"{_KEPT_BY_ALL} {family.kept} {family.periods} {windows}".split():
        if key not in config:
            continue
        if len(json.dumps(config[key])) > MAX_SETTING_CHARACTERS:
            raise NoDerivedProxy("checkpoint", f"config.json: {key}: is too long to keep")
        kept[key] = config[key]
    return kept


def _nothing_close(
    checkpoint: _Checkpoint, shapes: list[_Shape], parameters: int
) -> NoDerivedProxy:
    vocabulary = checkpoint.config["vocab_size"]
    why = (
        f"no shape with the checkpoint's proportions and its vocabulary of {vocabulary:,} has "
        f"{parameters:,} active parameters within {TOLERANCE:.0%}"
    )
    if not shapes:
        return NoDerivedProxy("parameters", why)
    nearest = min(shapes, key=lambda shape: abs(math.log(shape.active / parameters)))
    return NoDerivedProxy("parameters", f"{why}: the nearest has {nearest.active:,}")
