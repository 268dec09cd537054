"""Which short continued runs of a checkpoint show whether an answer holds for it, and what they cost.

They are points of a sweep of one size, the checkpoint itself, whose points are listed instead of on a grid, and
which fits no laws. Everything that trains points trains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from isoloss.significant_digits import to_significant_digits
from isoloss.validation import Place, probe_cross
from isoloss_contract.records import (
    WARMUP_MULTIPLE,
    DataManifest,
    ParameterCounts,
    content_key,
)
from isoloss_operator.api import (
    AnswerValidation,
    Checkpoint,
    Model,
    Proxy,
    ScalingSweepSpec,
    Search,
)
from isoloss_operator.planning.architectures import UnsupportedModel, unknown_keys
from isoloss_operator.planning.flops import whole_steps
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.points import PlannedPoint, planned_point, planned_proxy

NAME: Final = "probe"
MAX_PLACES: Final = 5
"""The answer, and a neighbour on either side of its learning rate and of its batch size."""
NOT_THE_MODEL: Final = frozenset({"_name_or_path", "auto_map", "qk_head_dim"})
"""Keys of a config.json that say where it came from, or what others say already. The trainer runs no code that
auto_map names; DeepSeek-V3's qk_head_dim is the sum of two others."""
ALIKE: Final = 1.05
"""Factor in tokens up to which runs are of one length, and up to which probes may exceed the budget."""


class NoProbes(ValueError):
    """No probes can be trained; the message names the field or file and says what to do."""


def probe_places(
    learning_rate: float, batch_size: float, factor: float, multiple_of: int = 1
) -> tuple[Place, ...]:
    """The answer and its neighbours, the answer first; batch sizes in sequences.

    Both are rounded to two digits first: an answer that has hardly moved keeps its probes.
    """
    places = probe_cross(
        to_significant_digits(learning_rate, 2),
        to_significant_digits(batch_size, 2),
        factor,
        multiple_of=multiple_of,
    )
    return tuple(
        replace(place, learning_rate=to_significant_digits(place.learning_rate, 4))
        for place in places
    )


def probe_model(config: Mapping[str, Any], measured: ParameterCounts) -> dict[str, Any]:
    """The checkpoint's own model for its probes, from its config.json.

    `measured` are the counts of the evaluation, which loaded it. Raises NoProbes where the model is not one whose
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
    """The sweep that trains the probes for `tokens` each: as the laws' own but for its one size and its limits."""
    first = sweep.training.seed
    seeds = tuple(range(first + 1, first + validation.seeds))
    proxy = Proxy(
        name=NAME,
        model=Model(config=dict(model)),
        tokens=tokens,
        pod_template=validation.pod_template,
    )
    return sweep.model_copy(
        update={
            "suspend": suspend,
            "proxies": (proxy,),
            "evaluation": sweep.evaluation.model_copy(update={"cooldown": None}),
            "training": sweep.training.model_copy(update={"additional_seeds": seeds}),
            "search": Search(),
            "budget": validation.budget,
            "parallelism": validation.parallelism,
        }
    )


def probe_tokens(budget_tokens: float, share: float, largest_batch: int, length: int) -> int:
    """Tokens of each probe: a share of the budget's, in whole steps of `largest_batch` sequences of `length`.

    Raises NoProbes where that would exceed the budget.
    """
    tokens = whole_steps(max(1, round(share * budget_tokens)), largest_batch, length)
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
) -> tuple[PlannedPoint, ...]:
    """The runs of `spec`, made by `probe_sweep`, in order of places and seeds.

    Raises NoProbes where the checkpoint does not fit the corpus, or the runs are too short to be compared.
    """
    proxy = planned_proxy(spec, 0, manifest)
    _check_corpus(proxy.model, manifest)
    if proxy.tokens <= WARMUP_MULTIPLE * proxy.warmup_tokens:
        raise NoProbes(
            f"spec.validation.tokensShare: probes of {proxy.tokens} tokens end within twice their warm-up of "
            f"{proxy.warmup_tokens} tokens: raise it"
        )
    assert proxy.base is not None  # there is a manifest
    secret = checkpoint.secret_name
    proxy = replace(
        proxy,
        base=proxy.base.model_copy(update={"initial_weights": checkpoint.uri.rstrip("/")}),
        secret_name=secret,
        template_digest=content_key([proxy.template_digest, secret])[:16],
    )
    points = tuple(
        planned_point(spec, proxy, place.batch_size, place.learning_rate, seed)
        for place in places
        for seed in spec.training.seeds
    )
    if max(point.tokens for point in points) > ALIKE * min(point.tokens for point in points):
        raise NoProbes(
            f"spec.validation.tokensShare: {proxy.tokens} tokens are so few steps that probes of different batch "
            "sizes end at different tokens: raise it"
        )
    return points


def _check_corpus(model: Mapping[str, Any], manifest: DataManifest) -> None:
    """Raises NoProbes where the model cannot read the corpus."""
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
