"""Which corpus a sweep prepares, which points it trains on it, also where it names no grid, what each costs and what it is
called.

Deterministic: the same spec and corpus give the same points, keys and Job names after every restart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from isoloss.numbers import to_significant_digits
from isoloss.published import PREFIX, NotApplicable, published_law
from isoloss_contract import records
from isoloss_contract.ledger import (
    MAX_PLACEMENTS,
    AddedPoint,
    KnownCheckpoint,
    Neighbourhood,
    Placement,
)
from isoloss_contract.records import content_key, in_words
from isoloss_contract.records.points import whole_steps
from isoloss_operator import api
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
    keyed = _Keyed(spec.model_dump_json(exclude={"suspend", "parallelism"}), spec)
    return _plan(keyed, manifest, additions, continued)


@lru_cache(maxsize=16)
def _plan(
    keyed: _Keyed,
    manifest: records.DataManifest | None,
    additions: tuple[AddedPoint, ...],
    continued: Continued,
) -> tuple[PlannedPoint, ...]:
    # The keys of 10,000 points take a second to compute, and every pass asks for the same ones.
    spec = keyed.spec
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
        size, rate, seed = proxies[added.proxy], added.learning_rate, spec.training.seed
        point = planned_point(spec, size, added.batch_size, rate, seed)
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
    of_seed = "" if seed == spec.training.seed else f"-s{seed}"
    return PlannedPoint(
        proxy=proxy,
        batch_size=batch_size,
        learning_rate=learning_rate,
        name=f"{proxy.name}-b{batch_size}-lr{decimal_label(learning_rate)}{of_seed}",
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
    base = None
    if manifest is not None:
        base = records.PointConfig(
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
            initial_weights=proxy.checkpoint_uri or None,
            initial_weights_stamp=stamps.get(proxy.checkpoint_uri, ""),
        )
    return PlannedProxy(
        index=index,
        name=proxy.name,
        tokens=proxy.tokens,
        model=model,
        parameters=parameters,
        warmup_tokens=optimizer.warmup_tokens,
        evaluation=evaluation,
        base=base,
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


def _with_grid_point(
    base: records.PointConfig, batch_size: int, learning_rate: float, seed: int
) -> records.PointConfig:
    changes = {"batch_size": batch_size, "learning_rate": learning_rate, "seed": seed}
    return base.model_copy(update=changes)


def without_shards(manifest: records.DataManifest) -> records.DataManifest:
    """All of a manifest by which points are planned: what a ledger keeps of it."""
    domains = (domain.model_copy(update={"training": ()}) for domain in manifest.domains)
    return manifest.model_copy(update={"domains": tuple(domains)})


# ----------------------------------------------------------- grids that a sweep leaves to its search
# A size is placed once, and the ledger keeps its centre: keys of points must not move when its tokens are raised.
# The lattice about the centre is the spec's.


LAW: Final = "step-law"
"""The only published law that counts size and tokens separately; docs/evidence/search.md has the measured coverage of
all."""
SOURCE: Final = PREFIX + LAW
DIGITS: Final = 2
"""Of a placed learning rate and batch size: more would give almost equal optima different points."""
COVERAGE: Final = (
    "On its authors' own tables (17 dense sizes and token counts, 16 of mixtures, from 215M parameters on) the published law's 3 x 3 "
    "grids always held the optimum. It is untested on other data, on smaller models and at a constant learning rate."
)
"""Measured with `make bench-search` on 22 November 2026: docs/evidence/search.md."""


GIVE_A_GRID: Final = "give a grid"
"""How refusals end: what helps where there is a manifest."""


@dataclass(frozen=True)
class Placed:
    """A spec whose sizes all have a grid, unless their points lie around an answer, and where it has been placed."""

    spec: api.ScalingSweepSpec
    places: tuple[Placement, ...]
    """Of the sizes that the user left to the search, in order of the proxies."""
    former: tuple[Placement, ...]
    """Of sizes that the search places no longer."""


def place_sizes(spec: api.ScalingSweepSpec, known: Sequence[Placement] = ()) -> Placed:
    """The spec with every grid that the user left to the search: about the places `known`, else by the published law.

    Raises InvalidSpec if the law does not apply, or a lattice cannot be trained.
    """
    kept, shape = _kept_places(spec, known), spec.search.placement
    places, grids, errors = list[Placement](), {}, []
    for proxy in sizes_to_place(spec):
        try:
            if (found := kept.get(proxy.name)) is not None:
                place = replace(found, proxy=proxy.name)
            else:
                counts = parameter_counts(proxy.config)
                at = placed_by_law(counts.body_total, proxy.tokens, spec.data.sequence_length)
                place = Placement(proxy.name, *at, SOURCE, model_key(proxy))
            rates, batch_sizes = lattice(
                (place.learning_rate, place.batch_size),
                shape.lines,
                float(shape.learning_rate_factor),
                float(shape.batch_size_factor),
            )
            # As a user would write it.
            grid = api.Grid(batch_sizes=batch_sizes, learning_rates=tuple(map(repr, rates)))
        except NotApplicable as error:
            errors.append(_give_a_grid(spec, proxy, str(error)))
        except ValidationError as error:
            reason = _beyond_limits(error.errors(include_url=False)[0], shape)
            errors.append(_give_a_grid(spec, proxy, reason, "lower these, or "))
        else:
            errors += _grid_errors(spec, proxy, grid)
            places.append(place)
            grids[proxy.name] = api.ProxyGrid(
                batch_sizes=grid.batch_sizes, learning_rates=grid.learning_rates
            )
    if errors:
        raise InvalidSpec(errors)
    former = former_places(known, [*places, *kept.values()])
    return Placed(_with_grids(spec, grids), tuple(places), former)


def placed_by_law(params: float, tokens: float, sequence_length: int) -> tuple[float, int]:
    """Learning rate and batch size of the published law's optimum, at `tokens` for sequences of `sequence_length` tokens.

    `params` are all parameters of the layers, without embeddings and output head; of a mixture of experts every
    expert's. Raises NotApplicable if the law gives values that no run could use.
    """
    optimum = published_law(LAW).evaluate(total_flops=6.0 * params * tokens, params=params)
    batch_size = to_significant_digits(optimum.batch_size(sequence_length), DIGITS)
    return to_significant_digits(optimum.learning_rate, DIGITS), max(round(batch_size), 1)


def lattice(
    centre: tuple[float, int], lines: int, rate_factor: float, batch_factor: float
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """`lines` learning rates and as many batch sizes about those of a place, these factors apart, ascending.

    Batch sizes are at least one sequence and differ: about a small one the lattice begins at the least that does.
    """
    half = (lines - 1) / 2
    slowest = centre[0] / rate_factor**half
    smallest = max(centre[1] / batch_factor**half, 1.0, 1.0 / (batch_factor - 1.0))
    batch_sizes: list[int] = []
    for k in range(lines):
        batch_size = round(to_significant_digits(smallest * batch_factor**k, DIGITS))
        # 1.5 and 2.5, a sequence apart, are both rounded to 2.
        batch_sizes.append(max(batch_size, batch_sizes[-1] + 1) if batch_sizes else batch_size)
    rates = (to_significant_digits(slowest * rate_factor**k, DIGITS) for k in range(lines))
    return tuple(rates), tuple(batch_sizes)


def _with_grids(
    spec: api.ScalingSweepSpec, grids: Mapping[str, api.ProxyGrid]
) -> api.ScalingSweepSpec:
    """The spec with these grids of its own for sizes, by name."""
    if not grids:
        return spec
    proxies = (
        proxy.model_copy(update={"grid": grids[proxy.name]}) if proxy.name in grids else proxy
        for proxy in spec.proxies
    )
    return spec.model_copy(update={"proxies": tuple(proxies)})


def sizes_to_place(spec: api.ScalingSweepSpec) -> tuple[api.Proxy, ...]:
    """Proxies for which a search is to find its own first points."""
    if not spec.searches or spec.grid is not None:
        return ()
    return tuple(proxy for proxy in spec.proxies if proxy.grid is None)


def model_key(proxy: api.Proxy) -> str:
    """What a size is, whatever it is called."""
    return content_key(proxy.config)


def _kept_places(spec: api.ScalingSweepSpec, known: Sequence[Placement]) -> dict[str, Placement]:
    """The places that sizes have already, as they are `known`, by the sizes' present names: under the same name, or under one
    that no size has now."""
    names, found = {proxy.name for proxy in spec.proxies}, dict[str, Placement]()
    for proxy in sizes_to_place(spec):
        model, taken = model_key(proxy), {place.proxy for place in found.values()}
        alike = [place for place in known if place.model == model]
        named = [place for place in alike if place.proxy == proxy.name]
        free = [place for place in alike if place.proxy not in names | taken]
        if place := next(iter((*named, *free)), None):
            found[proxy.name] = place
    return found


def former_places(
    known: Sequence[Placement], present: Sequence[Placement]
) -> tuple[Placement, ...]:
    """What the ledger keeps of `known` in addition to the `present` places, which include those of sizes that were renamed."""
    sizes = {(place.proxy, place.model) for place in present}
    former = [place for place in known if (place.proxy, place.model) not in sizes]
    return tuple(former[max(0, len(former) - MAX_PLACEMENTS) :])


def placed_sizes(
    spec: api.ScalingSweepSpec, placed: Iterable[Placement]
) -> Iterator[tuple[Placement, api.Grid]]:
    """What is placed with its grid, in order of the proxies. `spec` has a grid for every size."""
    by_name = {placement.proxy: placement for placement in placed}
    for proxy in spec.proxies:
        if proxy.name in by_name:
            yield by_name[proxy.name], spec.grid_of(proxy)


def _grid_errors(spec: api.ScalingSweepSpec, proxy: api.Proxy, grid: api.Grid) -> list[SpecError]:
    largest, length = grid.batch_sizes[-1], spec.data.sequence_length
    step = largest * length
    if spec.fewest_steps * step <= proxy.tokens:
        return []
    reason = (
        f"its tokens last for {proxy.tokens // step} steps of the largest placed batch, {largest} x {length} tokens, and "
        f"at least {spec.fewest_steps} are needed"
    )
    return [_give_a_grid(spec, proxy, reason)]


def _beyond_limits(detail: ErrorDetails, shape: api.SearchPlacement) -> str:
    """Which of the placed values no grid may have, and the fields that put it there."""
    kind, *index = detail["loc"]
    is_rate = kind == "learning_rates"
    factor = shape.learning_rate_factor if is_rate else shape.batch_size_factor
    value = f" {detail['input']}" if index else "s"
    rule = in_words(detail)
    return (
        f"search.placement.lines ({shape.lines}) and {'learningRateFactor' if is_rate else 'batchSizeFactor'} ({factor}) give "
        f"{'learning rate' if is_rate else 'batch size'}{value}, which {rule}"
    )


def _give_a_grid(
    spec: api.ScalingSweepSpec, proxy: api.Proxy, reason: str, otherwise: str = ""
) -> SpecError:
    field = f"spec.proxies[{spec.proxies.index(proxy)}].grid"
    advice = f"{otherwise}{GIVE_A_GRID}"
    return SpecError(field, f"is absent, and no first points can be placed: {reason}; {advice}")


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
