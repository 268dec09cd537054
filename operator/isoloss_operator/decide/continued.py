"""Sizes that continue a checkpoint: their models, and where points around the answer of a prediction lie."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from isoloss.numbers import to_significant_digits
from isoloss.validation import AT_THE_ANSWER, Place, probe_cross
from isoloss_contract import reading
from isoloss_contract.ledger import KnownCheckpoint, Ledger, Neighbourhood
from isoloss_contract.records.points import whole_steps
from isoloss_operator.api import HyperparamPredictionSpec, Model, Proxy, ScalingSweepSpec
from isoloss_operator.decide.conditions import READY, STALE
from isoloss_operator.decide.observation import ObservedAnswer, ObservedCheckpoint
from isoloss_operator.decide.reasons import Finding, Reason
from isoloss_operator.planning import specs
from isoloss_operator.planning.architectures import completed, text_model
from isoloss_operator.planning.parameters import model_problems

# ---------------------------------------------------------------------- the models of checkpoints


NOT_THE_MODEL: Final = frozenset({"_name_or_path", "auto_map", "qk_head_dim"})
"""Keys of a config.json that say where it came from, or what others say already. The trainer runs no code that
auto_map names; DeepSeek-V3's qk_head_dim is the sum of two others."""


class UnknownModel(ValueError):
    """The config.json of a checkpoint is none whose parameters are counted."""


def checkpoint_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model of a config.json, of which text is read alone. Raises UnknownModel."""
    model = {key: each for key, each in text_model(config).items() if key not in NOT_THE_MODEL}
    for key, message in model_problems(model).items():
        raise UnknownModel(f"{key}: {message}")
    return completed(model)


def with_checkpoint_models(
    spec: ScalingSweepSpec, known: Sequence[KnownCheckpoint]
) -> ScalingSweepSpec:
    """The spec with the model of every checkpoint that sizes continue, all of which are `known`.

    Raises InvalidSpec if sequences are longer than a model takes, or sizes are one.
    """
    if not spec.checkpoint_uris:
        return spec
    models = {each.uri: Model(config=dict(each.config)) for each in known}
    proxies = tuple(
        proxy.model_copy(update={"model": models[proxy.checkpoint_uri]})
        if proxy.checkpoint is not None
        else proxy
        for proxy in spec.proxies
    )
    found = spec.model_copy(update={"proxies": proxies})
    if errors := [*specs.position_errors(found), *specs.same_model_errors(found)]:
        raise specs.InvalidSpec(errors)
    return found


Checkpoints = Mapping[str, ObservedCheckpoint]


def known_checkpoints(
    spec: ScalingSweepSpec, known: Sequence[KnownCheckpoint], seen: Checkpoints
) -> tuple[KnownCheckpoint, ...]:
    """Those that sizes of the spec continue. What is `known` is kept while it cannot be read again.

    Raises InvalidSpec for one that is neither known nor a model in the store.
    """
    before = {each.uri: each for each in known}
    found, errors = {}, []
    for field, uri in spec.checkpoint_uris.items():
        try:
            found[uri] = _known_checkpoint(uri, before.get(uri), seen.get(uri))
        except UnknownModel as error:
            errors.append(specs.SpecError(field, f"{uri}/config.json: {error}"))
    if errors:
        raise specs.InvalidSpec(errors)
    return tuple(found.values())


def _known_checkpoint(
    uri: str, before: KnownCheckpoint | None, seen: ObservedCheckpoint | None
) -> KnownCheckpoint:
    """Raises UnknownModel."""
    seen = seen or ObservedCheckpoint(reading.ABSENT, reading.ABSENT)
    config, stamp = seen.config, seen.stamp
    found, known_stamp = reading.value_of(config), reading.value_of(stamp)
    if before is not None and (found is None or known_stamp is None):
        return before
    if found is None or isinstance(stamp, reading.Unreadable):
        raise UnknownModel(reading.problem_of(config) or reading.problem_of(stamp) or "not found")
    return KnownCheckpoint(uri, known_stamp or "", checkpoint_model(found))


def unanswered_checkpoint(
    spec: ScalingSweepSpec, known: Sequence[KnownCheckpoint], seen: Checkpoints
) -> str:
    """Why a checkpoint that no point was planned with yet is not known; empty: all are, or are known to be none."""
    before = {each.uri for each in known}
    reads: list[reading.Read[Any]] = []
    for uri in spec.checkpoint_uris.values():
        if uri not in before and uri in seen:
            reads += [seen[uri].config, seen[uri].stamp]
    return next((read.message for read in reads if reading.is_unknown(read)), "")


# ----------------------------------------------------------------------------- places around an answer


def neighbourhoods(
    name: str, spec: ScalingSweepSpec, ledger: Ledger, answers: Mapping[str, ObservedAnswer]
) -> tuple[Neighbourhood, ...] | Finding:
    """One for each size around an answer, or why it has no points yet: where its points are, if the answer is still near
    them, or there is none now. `name` is the sweep's.

    Raises InvalidSpec for a prediction whose answer cannot place them.
    """
    found = []
    for index, proxy in enumerate(spec.proxies):
        if proxy.around is None:
            continue
        known = _known_neighbourhood(proxy, spec, ledger)
        names = {proxy.name} if known is None else {proxy.name, known.proxy}
        answer = _answer(answers.get(proxy.around.prediction), name, index, proxy)
        if isinstance(answer, Finding):
            if known is None:
                return answer
            found.append(replace(known, proxy=proxy.name))
            continue
        records = (*ledger.points, *reversed(ledger.former))
        mine = [(r.learning_rate, r.batch_size) for r in records if r.proxy in names]
        known_places = dict.fromkeys((*(known.places if known else ()), *mine))
        placed = _neighbourhood(spec, proxy, answer, [Place(*each) for each in known_places])
        if errors := neighbourhood_errors(spec, placed):
            raise specs.InvalidSpec(errors)
        found.append(placed)
    return tuple(found)


def _known_neighbourhood(
    proxy: Proxy, spec: ScalingSweepSpec, ledger: Ledger
) -> Neighbourhood | None:
    """Where the ledger has the points of this size, also under a name that no size has any more."""
    assert proxy.around is not None
    present = {each.name for each in spec.proxies} - {proxy.name}
    known = {
        each.proxy: each
        for each in ledger.neighbourhoods
        if each.prediction == proxy.around.prediction and each.proxy not in present
    }
    return known.get(proxy.name) or (next(iter(known.values())) if len(known) == 1 else None)


@dataclass(frozen=True)
class _Answer:
    """A prediction with an answer to place points around."""

    asked: HyperparamPredictionSpec
    learning_rate: float
    batch_size: float
    """Sequences of the target."""


def _answer(
    answer: ObservedAnswer | None, sweep: str, index: int, proxy: Proxy
) -> _Answer | Finding:
    """Raises InvalidSpec."""
    assert proxy.around is not None
    name, field = proxy.around.prediction, f"spec.proxies[{index}]"
    if answer is None:
        message = (
            f"{field}.grid.around: there is no HyperparamPrediction {name} in this namespace."
        )
        return Finding(Reason.PREDICTION_NOT_FOUND, message)
    asked, found = answer.spec, answer.conditions
    ready, stale = found.get(READY), found.get(STALE)
    not_ready = partial(Finding, Reason.PREDICTION_NOT_READY)
    if isinstance(asked, specs.InvalidSpec):
        return not_ready(f"The spec of HyperparamPrediction {name} is invalid: {asked}")
    if asked.sweep_ref.name == sweep:
        message = (
            f"HyperparamPrediction {name} answers from the laws of this sweep, which it would wait for: put the size into "
            "a ScalingSweep of its own"
        )
        raise specs.InvalidSpec([specs.SpecError(f"{field}.grid.around.prediction", message)])
    theirs = "" if asked.checkpoint is None else asked.checkpoint.uri.rstrip("/")
    if theirs != proxy.checkpoint_uri:
        message = f"HyperparamPrediction {name} is about {theirs or 'no checkpoint, but a given loss'}: name the same checkpoint"
        raise specs.InvalidSpec([specs.SpecError(f"{field}.checkpoint.uri", message)])
    if ready is None or ready.status != "True" or ready.observed_generation != answer.generation:
        cause = "the operator has not processed it yet" if ready is None else ready.message
        reason = "" if ready is None else f" ({ready.reason})"
        return not_ready(f"HyperparamPrediction {name} is not ready{reason}: {cause}")
    if stale is not None and stale.status == "True":
        return not_ready(
            f"The answer of HyperparamPrediction {name} is about to change: {stale.message}"
        )
    numbers = _numbers(answer)
    if numbers is None:
        return not_ready(
            f"The status of HyperparamPrediction {name} has no answer that can be read."
        )
    return _Answer(asked, *numbers)


def _numbers(answer: ObservedAnswer) -> tuple[float, float] | None:
    """Learning rate, and sequences of the target per batch; None if the status has none that can be read."""
    rate, batch = answer.parsed_status.learning_rate, answer.parsed_status.batch_size
    try:
        found = float((rate and rate.value) or "nan"), float((batch and batch.value) or "nan")
    except ValueError:
        return None
    return found if all(math.isfinite(each) and each > 0 for each in found) else None


def _neighbourhood(
    spec: ScalingSweepSpec, proxy: Proxy, answer: _Answer, known: Sequence[Place]
) -> Neighbourhood:
    """Of batch sizes in sequences of this sweep at equal tokens per step."""
    asked, length = answer.asked, spec.data.sequence_length
    assert proxy.around is not None
    batch_size = max(answer.batch_size * (asked.target_sequence_length or length) / length, 1.0)
    multiple_of = 1 if asked.target_sequence_length else asked.batch_size_multiple_of
    if asked.batch_size is not None:
        multiple_of = round(batch_size)
    places = places_around(
        answer.learning_rate,
        batch_size,
        float(proxy.around.factor),
        multiple_of,
        known=known,
    )
    if asked.batch_size is not None:
        # Which batch size is best is not asked: others would tell nothing of the learning rate at the given one.
        places = tuple(place for place in places if place.batch_size == places[0].batch_size)
    pairs = tuple((place.learning_rate, place.batch_size) for place in places)
    return Neighbourhood(proxy.name, proxy.around.prediction, pairs)


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
