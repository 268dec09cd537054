"""Which short continued runs of a checkpoint show whether an answer holds for it, and what they cost.

They are points of a sweep of one size, the checkpoint itself, whose points are listed instead of on a grid, and
which fits no laws. Everything that trains points trains them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from isoloss.significant_digits import to_significant_digits
from isoloss.validation import AT_THE_ANSWER, Place, probe_cross
from isoloss_contract.records import (
    WARMUP_MULTIPLE,
    DataManifest,
    ParameterCounts,
    content_key,
)
from isoloss_contract.schedule import whole_steps
from isoloss_operator.api import (
    AnswerValidation,
    Checkpoint,
    HyperparamPredictionSpec,
    Model,
    Proxy,
    ScalingSweepSpec,
    Search,
    SweepBudget,
)
from isoloss_operator.planning.architectures import UnsupportedModel, unknown_keys
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.points import (
    SEEDS,
    PlannedPoint,
    planned_point,
    planned_proxy,
)

NAME: Final = "probe"
MAX_PLACES: Final = 5
"""The answer, and a neighbour on either side of its learning rate and of its batch size."""
NOT_THE_MODEL: Final = frozenset({"_name_or_path", "auto_map", "qk_head_dim"})
"""Keys of a config.json that say where it came from, or what others say already. The trainer runs no code that
auto_map names; DeepSeek-V3's qk_head_dim is the sum of two others."""
ANSWERS_PAID: Final = 2
"""How many answers' probes are paid if no budget is written: the first, its retries, and one that moved."""
KEPT_SHARE: Final = 0.25
"""Share of the distance between neighbours by which an answer may move, in ln LR and in ln B, and keep its probes."""
MOST_KEPT: Final = 0.2
"""The same as a distance: if neighbours are far apart, a probe must still stand for the answer (AT_THE_ANSWER)."""
ALIKE: Final = 1.05
"""Factor in tokens up to which runs are of one length, and up to which probes may exceed the budget."""


class NoProbes(ValueError):
    """No probes can be trained; the message names the field or file and says what to do."""


def probe_places(
    learning_rate: float,
    batch_size: float,
    factor: float,
    multiple_of: int = 1,
    *,
    raw_batch_size: float | None = None,
    known: Sequence[Place] = (),
) -> tuple[Place, ...]:
    """The answer and its neighbours, the answer first; batch sizes in sequences.

    `known` are places that have probes, those of the last answer first. The first one near the answer stands for it,
    with its neighbours: an answer that has hardly moved keeps its probes, on whichever side of a rounding border it
    is. `raw_batch_size` is the answer's before it was rounded. If none is near, both are rounded to two digits.
    """
    batch_sizes = (batch_size, raw_batch_size or batch_size)
    for place in known:
        if place.batch_size % multiple_of == 0 and _is_near(
            place, learning_rate, batch_sizes, factor
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
    place: Place, learning_rate: float, batch_sizes: tuple[float, float], factor: float
) -> bool:
    """Whether a probe there stands for an answer whose batch size is given rounded and not."""
    given, raw = batch_sizes
    reach = _reach(factor)
    return (
        abs(math.log(place.learning_rate / learning_rate)) <= reach
        and abs(math.log(place.batch_size / raw)) <= reach
        and abs(math.log(place.batch_size / given)) <= AT_THE_ANSWER
    )


def _reach(factor: float) -> float:
    return min(KEPT_SHARE * math.log(factor), MOST_KEPT)


def _about(
    centre: Place, factor: float, multiple_of: int, known: Sequence[Place]
) -> tuple[Place, ...]:
    """A place with probes and its neighbours: of batch sizes those that it had, which rounding may have made others."""
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


def probe_model(config: Mapping[str, Any], measured: ParameterCounts) -> dict[str, Any]:
    """The checkpoint's own model for its probes, from its config.json.

    `measured` are the counts of the evaluation, which loaded it. Raises NoProbes if the model is not one whose
    parameters the operator counts, or counts otherwise.
    """
    model = {key: value for key, value in config.items() if key not in NOT_THE_MODEL}
    try:
        counts, unknown = parameter_counts(model), unknown_keys(model)
    except UnsupportedModel as error:
        raise NoProbes(f"config.json of the checkpoint: {error}") from error
    if unknown:
        key, message = next(iter(unknown.items()))
        raise NoProbes(f"config.json of the checkpoint: {key}: {message}")
    if counts.active != measured.active:
        raise NoProbes(
            f"config.json of the checkpoint means {counts.active} active parameters, but {measured.active} were "
            "measured: was it replaced since?"
        )
    return model


def probe_sweep(
    sweep: ScalingSweepSpec,
    validation: AnswerValidation,
    model: Mapping[str, Any],
    tokens: int,
    *,
    suspend: bool,
) -> ScalingSweepSpec:
    """The sweep that trains the probes for `tokens` each, as the laws' own but for its one size and its limits."""
    first = sweep.training.seed
    seeds = tuple((first + n) % SEEDS for n in range(1, validation.seeds))
    proxy = Proxy(
        name=NAME,
        model=Model(config=dict(model)),
        tokens=tokens,
        nodes=validation.nodes,
        pod_template=validation.pod_template,
    )
    return sweep.model_copy(
        update={
            "suspend": suspend,
            "proxies": (proxy,),
            "training": sweep.training.model_copy(update={"additional_seeds": seeds}),
            "search": Search(),
            "budget": validation.budget,
            "parallelism": validation.parallelism,
        }
    )


def tokens_of_share(budget_tokens: float, share: float, largest_batch: int, length: int) -> int:
    """A share of the budget's tokens, in whole steps of `largest_batch` sequences of `length`."""
    return whole_steps(max(1, round(share * budget_tokens)), largest_batch, length)


def probe_tokens(budget_tokens: float, share: float, largest_batch: int, length: int) -> int:
    """Tokens of each probe: a share of the budget's, in whole steps of `largest_batch` sequences of `length`.

    Raises NoProbes if that would exceed the budget.
    """
    tokens = tokens_of_share(budget_tokens, share, largest_batch, length)
    if tokens > budget_tokens * ALIKE:
        raise NoProbes(
            f"spec.budget: one step of {largest_batch} sequences is more than its {budget_tokens:.0f} tokens"
        )
    return tokens


def plan_probes(
    spec: ScalingSweepSpec,
    manifest: DataManifest,
    places: Sequence[Place],
    checkpoint: Checkpoint,
    stamp: str = "",
) -> tuple[PlannedPoint, ...]:
    """The runs of `spec`, made by `probe_sweep`, in order of places and seeds. `stamp` is of the checkpoint's files.

    Raises NoProbes if the checkpoint does not fit the corpus, or the runs are too short to be compared.
    """
    proxy = planned_proxy(spec, 0, manifest)
    _check_corpus(proxy.model, manifest)
    if proxy.tokens <= WARMUP_MULTIPLE * proxy.warmup_tokens:
        raise NoProbes(
            f"spec.validation.tokensShare: the {proxy.tokens} tokens of a probe end within twice "
            f"its warm-up of {proxy.warmup_tokens} tokens: raise it"
        )
    assert proxy.base is not None  # there is a manifest
    secret = checkpoint.secret_name
    proxy = replace(
        proxy,
        base=proxy.base.model_copy(
            update={
                "initial_weights": checkpoint.uri.rstrip("/"),
                "initial_weights_stamp": stamp,
            }
        ),
        secret_name=secret,
        template_digest=content_key([proxy.template_digest, secret])[:16],
    )
    points = tuple(
        planned_point(spec, proxy, place.batch_size, place.learning_rate, seed)
        for place in places
        for seed in spec.training.seeds
    )
    lengths = [point.tokens for point in points]
    if max(lengths) > ALIKE * min(lengths):
        raise NoProbes(
            f"spec.validation.tokensShare: {min(lengths)} tokens are so few steps that probes of different batch "
            "sizes end at different tokens: raise it"
        )
    return points


def default_budget(flops: Iterable[float]) -> SweepBudget:
    """What all probes of a prediction without a budget may spend; `flops` are those of the present answer's."""
    return SweepBudget(flops=f"{ANSWERS_PAID * sum(flops):.4e}")


@dataclass(frozen=True)
class ProbeCost:
    """All probes of one validation, retries left out. Rounding can make two places one: then it is less."""

    runs: int
    share_of_budget: float
    """Share of the prediction's planned compute, all runs together."""
    flops: float | None
    """As the prediction's budget counts them; None: the budget is in tokens."""
    tokens: float | None
    """None: the budget is in FLOPs."""
    max_flops: float | None
    """The validation's own budget; None: it does not limit FLOPs."""


def probe_cost(spec: HyperparamPredictionSpec) -> ProbeCost | None:
    """None if no validation is asked for."""
    validation, budget = spec.validation, spec.budget
    if validation is None:
        return None
    runs = MAX_PLACES * validation.seeds
    share, own = runs * float(validation.tokens_share), validation.budget
    return ProbeCost(
        runs=runs,
        share_of_budget=share,
        flops=share * float(budget.flops) if budget.flops else None,
        tokens=share * budget.tokens if budget.tokens else None,
        max_flops=float(own.flops) if own and own.flops else None,
    )


def _check_corpus(model: Mapping[str, Any], manifest: DataManifest) -> None:
    """Raises NoProbes if the model cannot read the corpus."""
    vocabulary, positions = model["vocab_size"], model.get("max_position_embeddings")
    if vocabulary < manifest.vocabulary_size:
        raise NoProbes(
            f"the checkpoint has a vocabulary of {vocabulary}, smaller than the {manifest.vocabulary_size} of the "
            "sweep's tokenizer: it cannot be trained on the sweep's corpus"
        )
    if not isinstance(positions, int) or positions < manifest.sequence_length:
        raise NoProbes(
            f"the checkpoint has {positions} positions (max_position_embeddings), fewer than the "
            f"{manifest.sequence_length} of the sweep's sequences"
        )
