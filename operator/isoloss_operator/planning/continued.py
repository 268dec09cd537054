"""Sizes that continue a checkpoint: their models, and where points around the answer of a prediction lie."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from isoloss.errors import to_significant_digits
from isoloss.validation import AT_THE_ANSWER, Place, probe_cross
from isoloss_contract.ledger import KnownCheckpoint, Neighbourhood
from isoloss_contract.records.points import whole_steps
from isoloss_operator.api import Model, ScalingSweepSpec
from isoloss_operator.planning import specs
from isoloss_operator.planning.architectures import (
    UnsupportedModel,
    completed,
    text_model,
    unknown_keys,
)
from isoloss_operator.planning.parameters import attention_shapes, parameter_counts

# ---------------------------------------------------------------------- the models of checkpoints


NOT_THE_MODEL: Final = frozenset({"_name_or_path", "auto_map", "qk_head_dim"})
"""Keys of a config.json that say where it came from, or what others say already. The trainer runs no code that
auto_map names; DeepSeek-V3's qk_head_dim is the sum of two others."""


class UnknownModel(ValueError):
    """The config.json of a checkpoint is none whose parameters are counted."""


def checkpoint_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model of a config.json, of which text is read alone. Raises UnknownModel."""
    model = {key: each for key, each in text_model(config).items() if key not in NOT_THE_MODEL}
    try:
        model = completed(model)
        parameter_counts(model)
        attention_shapes(model)
        unknown = unknown_keys(model)
    except UnsupportedModel as error:
        raise UnknownModel(str(error)) from error
    for key, message in unknown.items():
        raise UnknownModel(f"{key}: {message}")
    return model


def with_checkpoint_models(
    spec: ScalingSweepSpec, known: Sequence[KnownCheckpoint]
) -> ScalingSweepSpec:
    """The spec with the model of every checkpoint that sizes continue, all of which are `known`.

    Raises InvalidSpec if sequences are longer than a model takes, or sizes are one.
    """
    models = {each.uri: Model(config=dict(each.config)) for each in known}
    proxies = tuple(
        proxy.model_copy(update={"model": models[specs.checkpoint_uri(proxy)]})
        if proxy.checkpoint is not None
        else proxy
        for proxy in spec.proxies
    )
    if not specs.checkpoint_uris(spec):
        return spec
    found = spec.model_copy(update={"proxies": proxies})
    if errors := [*specs.position_errors(found), *specs.same_model_errors(found)]:
        raise specs.InvalidSpec(errors)
    return found


# ----------------------------------------------------------------------------- places around an answer


KEPT_SHARE: Final = 0.25
"""Share of the distance between neighbours by which an answer may move, in ln LR and in ln B, and keep its points."""
MOST_KEPT: Final = 0.2
"""The same as a distance: if neighbours are far apart, a point must still stand for the answer (AT_THE_ANSWER)."""
ALIKE: Final = 1.05
"""Factor in tokens up to which runs are of one length."""


def places_around(
    learning_rate: float,
    batch_size: float,
    factor: float,
    multiple_of: int = 1,
    *,
    known: Sequence[Place] = (),
) -> tuple[Place, ...]:
    """The answer and its neighbours, the answer first; batch sizes in sequences.

    `known` are places that have points, those of the last answer first. The first one near the answer stands for it,
    with its neighbours: an answer that has hardly moved keeps its points, on whichever side of a rounding border it
    is. If none is near, both are rounded to two digits.
    """
    for place in known:
        if place.batch_size % multiple_of == 0 and _is_near(
            place, learning_rate, batch_size, factor, multiple_of
        ):
            return _about(place, factor, multiple_of, known)
    rate, batch = to_significant_digits(learning_rate, 2), to_significant_digits(batch_size, 2)
    return _cross(rate, batch, factor, multiple_of)


def _cross(
    learning_rate: float, batch_size: float, factor: float, multiple_of: int
) -> tuple[Place, ...]:
    places = probe_cross(learning_rate, batch_size, factor, multiple_of=multiple_of)
    return tuple(
        replace(place, learning_rate=to_significant_digits(place.learning_rate, 4))
        for place in places
    )


def _is_near(
    place: Place, learning_rate: float, batch_size: float, factor: float, multiple_of: int
) -> bool:
    """Whether a point there stands for an answer. A batch size may also have crossed one border of rounding."""
    reach = _reach(factor)
    batches = abs(math.log(place.batch_size / batch_size))
    is_next = abs(place.batch_size - batch_size) <= multiple_of
    return abs(math.log(place.learning_rate / learning_rate)) <= reach and (
        batches <= (AT_THE_ANSWER if is_next else reach)
    )


def _reach(factor: float) -> float:
    return min(KEPT_SHARE * math.log(factor), MOST_KEPT)


def _about(
    centre: Place, factor: float, multiple_of: int, known: Sequence[Place]
) -> tuple[Place, ...]:
    """A place with points and its neighbours: of batch sizes those that it had, which rounding may have made others."""
    row = [place for place in known if place.learning_rate == centre.learning_rate]
    row = [place for place in row if place.batch_size % multiple_of == 0]

    def had(neighbour: Place) -> Place:
        is_above = neighbour.batch_size > centre.batch_size
        wanted = centre.batch_size * (factor if is_above else 1.0 / factor)
        side = [p for p in row if p.batch_size != centre.batch_size]
        side = [p for p in side if (p.batch_size > centre.batch_size) is is_above]
        nearest = min(side, key=lambda p: abs(math.log(p.batch_size / wanted)), default=neighbour)
        is_close = abs(math.log(nearest.batch_size / wanted)) <= _reach(factor)
        return nearest if is_close else neighbour

    places = _cross(centre.learning_rate, centre.batch_size, factor, multiple_of)
    return tuple(p if p.batch_size == centre.batch_size else had(p) for p in places)


def neighbourhood_errors(spec: ScalingSweepSpec, found: Neighbourhood) -> list[specs.SpecError]:
    """What keeps the points of a size from being trained, or from being compared once they are."""
    index = next(i for i, proxy in enumerate(spec.proxies) if proxy.name == found.proxy)
    tokens, length = spec.proxies[index].tokens, spec.data.sequence_length
    lengths = [whole_steps(tokens, batch, length) for _, batch in found.places]
    if max(lengths) <= ALIKE * min(lengths) and min(lengths) <= ALIKE * tokens:
        return []
    largest = max(batch for _, batch in found.places)
    message = (
        f"{tokens} tokens are so few steps of {largest} x {length} tokens, a batch next to the answer of "
        f"HyperparamPrediction {found.prediction}, that points of different batch sizes end at different tokens: raise it"
    )
    return [specs.SpecError(f"spec.proxies[{index}].tokens", message)]
