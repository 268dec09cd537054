"""Which corpus a sweep prepares, which points it trains on it, what each costs and what it is called.

Deterministic: the same spec and corpus give the same points, keys and Job names after every restart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

from isoloss_contract import records
from isoloss_contract.ledger import AddedPoint, KnownCheckpoint, Neighbourhood
from isoloss_contract.records.points import whole_steps
from isoloss_operator.api import Proxy, ScalingSweepSpec
from isoloss_operator.planning.flops import six_nd
from isoloss_operator.planning.models import parameter_counts
from isoloss_operator.planning.specs import InvalidSpec, SpecError


@dataclass(frozen=True)
class PlannedProxy:
    """What all points of one size share."""

    index: int
    """In spec.proxies."""
    name: str
    tokens: int
    """Wanted per point, as in the spec."""
    model: dict[str, Any]
    parameters: records.ParameterCounts
    warmup_tokens: int
    evaluation: records.EvaluationConfig
    base: records.PointConfig | None
    """A point's config apart from batch size and learning rate; None before the corpus is prepared."""
    pod_template: dict[str, Any] | None
    nodes: int
    """Pods that train a point together."""
    template_digest: str
    """Digest of everything that shapes its pods. Failures are charged to a template: a changed one starts over."""
    secret_name: str | None = None
    """Secret that its pods need in addition to the store's."""


Place = tuple[str, int, float, int]
"""Size, batch size, learning rate and seed of a point."""


@dataclass(frozen=True)
class PlannedPoint:
    """One run of the grid."""

    proxy: PlannedProxy
    batch_size: int
    learning_rate: float
    name: str
    """Unique within the sweep: `<proxy>-b64-lr2e-4`."""
    key: str
    """Content key; empty before the corpus is prepared."""
    tokens: int
    """Wanted tokens rounded up to a whole step: what will be trained."""
    flops: float
    """6 * active parameters * tokens."""
    seed: int = 0
    """Seed of initialisation and data order."""
    target: int | None = None
    """Tokens after which a search wants it to stop for now; None: it trains to its proxy's."""

    @property
    def place(self) -> Place:
        """What tells it from the others of its sweep."""
        return self.proxy.name, self.batch_size, self.learning_rate, self.seed

    @property
    def wanted_tokens(self) -> int:
        """To train for now, before they are rounded up to a whole step."""
        return self.proxy.tokens if self.target is None else min(self.target, self.proxy.tokens)

    @property
    def wanted_flops(self) -> float:
        """6 * active parameters * wanted tokens in whole steps."""
        return self.flops if self.target is None else self.flops_for(self.wanted_tokens)

    def flops_for(self, tokens: int) -> float:
        """The same for a run to so many tokens; before the corpus is prepared those of the whole run."""
        base = self.proxy.base
        if base is None:
            return self.flops
        trained = whole_steps(tokens, self.batch_size, base.sequence_length)
        return six_nd(self.proxy.parameters, trained)

    @property
    def config(self) -> records.PointConfig:
        """The trainer's input. Raises ValueError before the corpus is prepared."""
        if self.proxy.base is None:
            raise ValueError(f"{self.name}: the corpus is not prepared yet")
        return _with_grid_point(self.proxy.base, self.batch_size, self.learning_rate, self.seed)


SEEDS: Final = 2**31
"""Seeds of the API: the number after the last one is the first."""


@dataclass(frozen=True)
class Continued:
    """What the ledger knows of the sizes that continue a checkpoint."""

    stamps: tuple[tuple[str, str], ...] = ()
    """Of the files of each checkpoint by its URI, without a trailing slash."""
    neighbourhoods: tuple[Neighbourhood, ...] = ()
    """Of every size whose points lie around an answer."""

    @classmethod
    def of(
        cls, checkpoints: Iterable[KnownCheckpoint], neighbourhoods: Iterable[Neighbourhood]
    ) -> Continued:
        """What the ledger has of them."""
        stamps = tuple((each.uri, each.stamp) for each in checkpoints)
        return cls(stamps, tuple(neighbourhoods))


FROM_SCRATCH: Final = Continued()


@dataclass(frozen=True)
class _Keyed:
    """A spec by what it plans: specs cannot be hashed."""

    json: str
    spec: ScalingSweepSpec = field(compare=False)


def plan_points(
    spec: ScalingSweepSpec,
    manifest: records.DataManifest | None = None,
    additions: tuple[AddedPoint, ...] = (),
    continued: Continued = FROM_SCRATCH,
) -> tuple[PlannedPoint, ...]:
    """The spec's points in order of proxies, batch sizes, learning rates, seeds; then the ledger's.

    Every size has a model (`with_checkpoint_models`), and a grid, its own or a placed one (`place_sizes`), or a
    neighbourhood.
    `additions` of a proxy that the spec no longer has, or that its grid contains by now, are left out.
    Before the corpus is prepared there is no manifest, and points have no keys. Raises InvalidSpec if
    the corpus does not fit the spec: vocabulary, empty domains, equal points.
    """
    manifest_json = None if manifest is None else manifest.model_dump_json()
    keyed = _Keyed(spec.model_dump_json(exclude={"suspend", "parallelism"}), spec)
    return _plan(keyed, manifest_json, additions, continued)


@lru_cache(maxsize=16)
def _plan(
    keyed: _Keyed,
    manifest_json: str | None,
    additions: tuple[AddedPoint, ...],
    continued: Continued,
) -> tuple[PlannedPoint, ...]:
    # The keys of 10,000 points take a second to compute, and every pass asks for the same ones.
    spec = keyed.spec
    manifest = (
        None if manifest_json is None else records.DataManifest.model_validate_json(manifest_json)
    )
    if manifest is not None and (errors := _corpus_errors(spec, manifest)):
        raise InvalidSpec(errors)
    points = list[PlannedPoint]()
    for index, proxy in enumerate(spec.proxies):
        planned = planned_proxy(spec, index, manifest, dict(continued.stamps))
        points += [
            planned_point(spec, planned, batch_size, rate, seed)
            for rate, batch_size in _places(spec, proxy, continued)
            for seed in spec.training.seeds
        ]
    return (*points, *_added_points(spec, points, additions))


def by_size(points: Iterable[PlannedPoint]) -> dict[str, list[PlannedPoint]]:
    """Points by the name of their size, both in their order."""
    found = defaultdict[str, list[PlannedPoint]](list)
    for point in points:
        found[point.proxy.name].append(point)
    return found


def _places(
    spec: ScalingSweepSpec, proxy: Proxy, continued: Continued
) -> Iterator[tuple[float, int]]:
    """Learning rates and batch sizes of a size."""
    if proxy.is_around_an_answer:
        yield from next(n.places for n in continued.neighbourhoods if n.proxy == proxy.name)
        return
    grid = spec.grid_of(proxy)
    for batch_size in grid.batch_sizes:
        for rate in grid.learning_rates:
            yield float(rate), batch_size


def _added_points(
    spec: ScalingSweepSpec, planned: Sequence[PlannedPoint], additions: Sequence[AddedPoint]
) -> Iterator[PlannedPoint]:
    """The ledger's points in addition to the spec's, in the order in which they were added."""
    proxies = {point.proxy.name: point.proxy for point in planned}
    names = {point.name for point in planned}
    for added in additions:
        if added.proxy not in proxies:
            continue
        seed = spec.training.seed if added.seed is None else added.seed
        rate = added.learning_rate
        point = planned_point(spec, proxies[added.proxy], added.batch_size, rate, seed)
        if point.name not in names:
            names.add(point.name)
            yield point


def planned_point(
    spec: ScalingSweepSpec, proxy: PlannedProxy, batch_size: int, learning_rate: float, seed: int
) -> PlannedPoint:
    """One run of a size at `batch_size` sequences."""
    base = proxy.base
    key = _with_grid_point(base, batch_size, learning_rate, seed).key if base else ""
    tokens = whole_steps(proxy.tokens, batch_size, spec.data.sequence_length)
    replicate = "" if seed == spec.training.seed else f"-s{seed}"
    return PlannedPoint(
        proxy=proxy,
        batch_size=batch_size,
        learning_rate=learning_rate,
        name=f"{proxy.name}-b{batch_size}-lr{decimal_label(learning_rate)}{replicate}",
        key=key,
        tokens=tokens,
        flops=six_nd(proxy.parameters, tokens),
        seed=seed,
    )


def planned_proxy(
    spec: ScalingSweepSpec,
    index: int,
    manifest: records.DataManifest | None,
    stamps: Mapping[str, str] = MappingProxyType({}),
) -> PlannedProxy:
    """What the points of spec.proxies[index] share; `stamps` are of checkpoints, by URI. Raises UnsupportedModel."""
    proxy = spec.proxies[index]
    secret = proxy.checkpoint.secret_name if proxy.checkpoint is not None else None
    model = proxy.config
    parameters = parameter_counts(model)
    optimizer = optimizer_config(spec, parameters)
    sequences = spec.data.validation.sequences_per_domain
    when = spec.evaluation.model_dump()
    evaluation = records.EvaluationConfig(**when, sequences_per_domain=sequences)
    return PlannedProxy(
        index=index,
        name=proxy.name,
        tokens=proxy.tokens,
        model=model,
        parameters=parameters,
        warmup_tokens=optimizer.warmup_tokens,
        evaluation=evaluation,
        base=_base_config(spec, proxy, model, optimizer, evaluation, manifest, stamps)
        if manifest
        else None,
        pod_template=proxy.pod_template,
        nodes=proxy.nodes or 1,
        template_digest=template_digest(spec, proxy.pod_template, proxy.nodes or 1, secret),
        secret_name=secret,
    )


def prepare_config(spec: ScalingSweepSpec, sources_stamp: str = "") -> records.PrepareConfig:
    """What determines the tokenised corpus of a sweep: that of files with this stamp, or the first of these URIs."""
    data = spec.data
    return records.PrepareConfig(
        tokenizer=data.tokenizer,
        sequence_length=data.sequence_length,
        domains=tuple(
            records.DomainSource(name=d.name, uri=d.uri, text_field=d.text_field)
            for d in data.domains
        ),
        validation_documents_per_thousand=data.validation.documents_per_thousand,
        bad_documents=data.bad_documents,
        sources_stamp=sources_stamp,
    )


def warmup_tokens(spec: ScalingSweepSpec, parameters: records.ParameterCounts) -> int:
    """Tokens of the linear warm-up of a size, the same for every batch size.

    As given; else one token per active parameter (Porian et al. 2406.19146), at most as many as leave
    every evaluation fitted. Only of what is immutable: a share of the run would start all points over
    when their tokens are raised.
    """
    given = spec.optimizer.warmup_tokens
    if given is not None:
        return given
    # Fitted are evaluations beyond WARMUP_MULTIPLE x the warm-up; the first is at firstTokens.
    longest = (spec.evaluation.first_tokens - 1) // records.WARMUP_MULTIPLE
    return min(parameters.active, longest)


def optimizer_config(
    spec: ScalingSweepSpec, parameters: records.ParameterCounts
) -> records.OptimizerConfig:
    """The trainer's optimizer settings for a size."""
    values = {**spec.optimizer.model_dump(), "warmup_tokens": warmup_tokens(spec, parameters)}
    # The API's decimals are texts.
    return records.OptimizerConfig.model_validate(values, strict=False)


def template_digest(
    spec: ScalingSweepSpec,
    own: dict[str, Any] | None = None,
    nodes: int = 1,
    secret: str | None = None,
) -> str:
    """Short hash of all that shapes a pod of this sweep. `own`: of the proxy, the data or the checkpoint, as `secret`."""
    further = [*([nodes] if nodes > 1 else []), *([secret] if secret else [])]
    return records.content_key([spec.pod_template, own, spec.storage.secret_name, *further])[:16]


def mixture(spec: ScalingSweepSpec) -> dict[str, float]:
    """Share of each domain in training and in the validation loss; sums to 1."""
    total = sum(domain.weight for domain in spec.data.domains)
    return {domain.name: domain.weight / total for domain in spec.data.domains}


PRECISIONS: Mapping[str, Literal["bf16", "float32"]] = {"BFloat16": "bf16", "Float32": "float32"}
"""The trainer's words for spec.training.precision: they are part of every content key."""


def _base_config(
    spec: ScalingSweepSpec,
    proxy: Proxy,
    model: dict[str, Any],
    optimizer: records.OptimizerConfig,
    evaluation: records.EvaluationConfig,
    manifest: records.DataManifest,
    stamps: Mapping[str, str],
) -> records.PointConfig:
    start = proxy.checkpoint_uri
    return records.PointConfig(
        data_digest=manifest.digest,
        mixture=mixture(spec),
        model=model,
        optimizer=optimizer,
        # Every point has its own.
        learning_rate=1.0,
        batch_size=1,
        sequence_length=spec.data.sequence_length,
        seed=spec.training.seed,
        evaluation=evaluation,
        precision=PRECISIONS[spec.training.precision],
        initial_weights=start or None,
        initial_weights_stamp=stamps.get(start, ""),
    )


def _with_grid_point(
    base: records.PointConfig, batch_size: int, learning_rate: float, seed: int
) -> records.PointConfig:
    changes = {"batch_size": batch_size, "learning_rate": learning_rate, "seed": seed}
    return base.model_copy(update=changes)


def without_shards(manifest: records.DataManifest) -> records.DataManifest:
    """All of a manifest by which points are planned: what a ledger keeps of it."""
    domains = (domain.model_copy(update={"training": ()}) for domain in manifest.domains)
    return manifest.model_copy(update={"domains": tuple(domains)})


# ---------------------------------------------------------------------------- corpus against spec


def _corpus_errors(spec: ScalingSweepSpec, manifest: records.DataManifest) -> list[SpecError]:
    errors = []
    for index, proxy in enumerate(spec.proxies):
        vocabulary = proxy.config["vocab_size"]
        if vocabulary < manifest.vocabulary_size:
            part = "checkpoint" if proxy.checkpoint is not None else "model.config.vocab_size"
            errors.append(
                SpecError(
                    f"spec.proxies[{index}].{part}",
                    f"a vocabulary of {vocabulary} is smaller than the tokenizer's "
                    f"{manifest.vocabulary_size}",
                )
            )
    for index, domain in enumerate(manifest.domains):
        field = f"spec.data.domains[{index}]"
        if domain.training_tokens < manifest.sequence_length:
            errors.append(
                SpecError(field, f"{domain.name} holds {domain.training_tokens} training tokens")
            )
        if domain.validation_tokens < manifest.sequence_length:
            errors.append(
                SpecError(
                    field,
                    f"{domain.name} has only {domain.validation_tokens} held-out tokens, less than one "
                    "sequence: raise validation.documentsPerThousand or add documents",
                )
            )
    return errors


def repeated_domains(spec: ScalingSweepSpec, manifest: records.DataManifest) -> dict[str, float]:
    """Epochs of the longest run over each domain that it sees more than once."""
    longest = max(proxy.tokens for proxy in spec.proxies)
    shares = mixture(spec)
    epochs = {
        domain.name: longest * shares[domain.name] / max(1, domain.training_tokens)
        for domain in manifest.domains
        if domain.name in shares
    }
    return {name: times for name, times in epochs.items() if times > 1}


# ----------------------------------------------------------------------------------------- names


def decimal_label(value: float) -> str:
    """A number as digits and exponent for a DNS label: 0.00025 is 25e-5."""
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    return f"{''.join(map(str, digits))}e{exponent}"
