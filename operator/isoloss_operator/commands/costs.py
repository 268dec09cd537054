"""What a sweep would train, cost and take, by size."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from isoloss import formatting
from isoloss.errors import BadInput
from isoloss.laws import size_refusal
from isoloss.savings import SearchCost, search_cost
from isoloss.search import SearchOptions, Step, next_step
from isoloss_contract.checkpointing import (
    COPY_BYTES_PER_SECOND,
    STORE_BYTES_PER_SECOND,
    Checkpointing,
    checkpoint_bytes,
)
from isoloss_contract.footprint import Fit, fit
from isoloss_contract.ledger import KnownCheckpoint, Neighbourhood
from isoloss_contract.memory import DEVICES, StateMemory, state_memory
from isoloss_contract.store import StoreError
from isoloss_operator import api
from isoloss_operator.cluster.accelerators import accelerators_of, misplaced_accelerators
from isoloss_operator.cluster.manifests import default_grace, grace_of
from isoloss_operator.cluster.pod_templates import merge
from isoloss_operator.cluster.template_fields import BadPodTemplate
from isoloss_operator.decide.checks import with_checkpoint_models
from isoloss_operator.decide.choose import (
    assumed_seconds_per_flop,
    search_options,
    search_sizes,
)
from isoloss_operator.planning.evaluation_share import evaluation_share
from isoloss_operator.planning.flops import (
    PEAK_FLOPS,
    assumed_utilisation,
    elapsed,
    executed_flops,
)
from isoloss_operator.planning.models import (
    UnsupportedModel,
    checkpoint_model,
    model_shape,
    parameter_counts,
    text_model,
)
from isoloss_operator.planning.points import (
    PRECISIONS,
    Continued,
    PlannedPoint,
    PlannedProxy,
    by_size,
    place_sizes,
    placed_sizes,
    plan_points,
)
from isoloss_operator.planning.search_cost import SearchEstimate, search_estimate
from isoloss_operator.planning.specs import InvalidSpec, SpecError
from isoloss_operator.settings import TERMINATION_GRACE_SECONDS


@dataclass(frozen=True)
class SizePlan:
    """All points of one proxy."""

    name: str
    points: int
    batch_sizes: tuple[int, ...]
    """Sequences; each has as many of the points."""
    params: int
    """Active parameters in matrix products, head included."""
    total_params: int
    warmup_tokens: int
    """Warm-up tokens of each point."""
    tokens: float
    """Tokens of all points."""
    flops: float
    executed_flops: float
    """Including attention scores: what the accelerators execute and hours are computed from."""
    utilisation: float
    """Share of an accelerator's peak that its training is assumed to reach, by these FLOPs."""
    evaluation_share: float
    """Share of a run's compute, in addition to training; not in the hours."""
    accelerators: int
    """Accelerators of each Job as the manifest requests them; the operator's own pod template may ask for more."""
    nodes: int
    """Pods of each Job that share them."""
    fits: dict[str, Fit | None]
    """How many sequences fit beside the training state at once on each of them, by kind of device; None: not even one."""
    checkpointing: Checkpointing
    """At the assumed throughput; the operator's own pod template and settings may give its pods another grace."""

    @property
    def memory(self) -> StateMemory:
        """What the training state takes on these."""
        return state_memory(self.total_params, self.accelerators, self.nodes)

    @property
    def stretches(self) -> tuple[float, ...]:
        """For each batch size, what a step takes over what it would take with all accelerators at work: sequences are
        not split, and those with fewer wait for the others (World.share of the trainer)."""
        return tuple(
            -(-batch // self.accelerators) * self.accelerators / batch
            for batch in self.batch_sizes
        )

    @property
    def idle_share(self) -> float:
        """Share of the accelerator hours in which accelerators wait for others that have a sequence more."""
        return 1 - len(self.stretches) / sum(self.stretches)


def _size(spec: api.ScalingSweepSpec, points: Sequence[PlannedPoint]) -> SizePlan:
    proxy = points[0].proxy
    tokens = float(sum(point.tokens for point in points))
    counts, (each, own_grace) = proxy.parameters, _pods(spec, proxy)
    accelerators, written = proxy.nodes * each, checkpoint_bytes(counts.total)
    if own_grace is None:
        own_grace = default_grace(counts.total, TERMINATION_GRACE_SECONDS)
    return SizePlan(
        name=proxy.name,
        points=len(points),
        batch_sizes=tuple(dict.fromkeys(point.batch_size for point in points)),
        params=counts.active,
        total_params=counts.total,
        warmup_tokens=proxy.warmup_tokens,
        tokens=tokens,
        flops=sum(point.flops for point in points),
        executed_flops=executed_flops(proxy.model, spec.data.sequence_length) * tokens,
        utilisation=assumed_utilisation(counts),
        evaluation_share=evaluation_share(spec, proxy.tokens),
        accelerators=accelerators,
        nodes=proxy.nodes,
        fits=_fits(spec, proxy, max(point.batch_size for point in points), accelerators),
        checkpointing=Checkpointing(
            copy=written / accelerators / COPY_BYTES_PER_SECOND,
            write=written / STORE_BYTES_PER_SECOND,
            grace=own_grace,
            preemptions_per_day=spec.training.preemptions_per_day * proxy.nodes,
            longest=spec.training.checkpoint_seconds,
        ),
    )


def _fits(
    spec: api.ScalingSweepSpec, proxy: PlannedProxy, batch: int, accelerators: int
) -> dict[str, Fit | None]:
    """At most its share of `batch` sequences on each accelerator."""
    precision, share = PRECISIONS[spec.training.precision], -(-batch // accelerators)
    needed = model_shape(proxy.model).footprint(precision, accelerators)
    found = {name: fit(needed, spec.data.sequence_length, size) for name, size in DEVICES.items()}
    return {name: f and Fit(min(f.sequences, share), f.recompute) for name, f in found.items()}


def _pods(spec: api.ScalingSweepSpec, proxy: PlannedProxy) -> tuple[int, int | None]:
    """Accelerators of each, and the seconds of grace that the templates give it."""
    template: dict[str, Any] = {}
    try:
        for change in (spec.pod_template, proxy.pod_template):
            template = merge(template, change or {})
        if misplaced := misplaced_accelerators(template):
            raise BadPodTemplate(misplaced)
        return accelerators_of(template), grace_of(template)
    except BadPodTemplate as error:
        raise BadInput(f"size {proxy.name}: {error}") from error


@dataclass(frozen=True)
class Pace:
    """Throughput of one accelerator at work, and what it costs."""

    tokens_per_second: float | None = None
    """Of every size; None: by FLOPs."""
    peak_flops: float = PEAK_FLOPS
    utilisation: float | None = None
    """Of every size; None: what each is assumed to reach."""
    price_per_hour: float | None = None
    """In any currency; None: not known."""

    def hours(self, size: SizePlan) -> float:
        """Accelerator hours of one size, those included in which small batches leave accelerators idle."""
        return sum(self.point_hours(size)) * size.points / len(size.batch_sizes)

    def point_hours(self, size: SizePlan) -> list[float]:
        """Accelerator hours of one point at each batch size; points differ in whole steps otherwise."""
        if self.tokens_per_second is not None:
            seconds = size.tokens / self.tokens_per_second
        else:
            seconds = size.executed_flops / (self._share(size) * self.peak_flops)
        return [seconds / 3600 / size.points * stretch for stretch in size.stretches]

    def _share(self, size: SizePlan) -> float:
        return size.utilisation if self.utilisation is None else self.utilisation

    def in_words(self, sizes: Sequence[SizePlan]) -> str:
        """For the line under the table."""
        if self.tokens_per_second is not None:
            return f"{formatting.number(self.tokens_per_second)} tokens per second and accelerator"
        peak = f"of {formatting.flops(self.peak_flops)} FLOPs per second and accelerator, attention included"
        names: dict[float, list[str]] = defaultdict(list)
        for size in sizes:
            names[self._share(size)].append(size.name)
        if len(names) == 1:
            return f"{next(iter(names)):.0%} {peak}"
        each = (f"{share:.0%} ({', '.join(of)})" for share, of in names.items())
        return f"{' and '.join(each)} {peak}"


@dataclass(frozen=True)
class Elapsed:
    """Hours from the first Job's start to the last one's end, without evaluations, queues and starts of pods."""

    parallelism: int
    whole_grid_hours: float
    search_hours: float | None
    """Expected of a search; None for an exhaustive sweep."""


@dataclass(frozen=True)
class PlacedSize:
    """The first points of a size without a grid."""

    name: str
    source: str
    """Whose laws placed them."""
    learning_rates: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    """Sequences."""


@dataclass(frozen=True)
class Planned:
    """What a sweep would train."""

    spec: api.ScalingSweepSpec
    """With a grid for every size."""
    placed: Sequence[PlacedSize]
    sizes: Sequence[SizePlan]
    search: SearchEstimate | None
    """What a sequential search of the spec costs; None for an exhaustive sweep."""
    first_step: Step | None
    """How such a search begins with its budget: with nothing if that does not cover what it must train."""

    @property
    def flops(self) -> float:
        """FLOPs of the whole grids."""
        return sum(size.flops for size in self.sizes)

    def hours(self, pace: Pace) -> float:
        """Accelerator hours of the whole grids."""
        return sum(pace.hours(size) for size in self.sizes)

    @property
    def trains_nothing(self) -> bool:
        """Whether it is a search that ends before its first run."""
        return self.first_step is not None and self.first_step.stop is not None

    @property
    def expected_flops(self) -> float:
        """Those that are expected: of the search if there is one."""
        if self.trains_nothing:
            return 0.0
        return self.flops if self.search is None else self.search.expected_flops

    def expected_hours(self, pace: Pace) -> float:
        """Accelerator hours of these."""
        return self.expected_flops / self.flops * self.hours(pace)

    def elapsed(self, pace: Pace) -> Elapsed:
        """How long it takes with as many Jobs at a time as the spec allows."""
        sizes, parallelism, search = self.sizes, self.spec.parallelism, self.search
        one_by_one = {size.name: pace.hours(size) / size.accelerators for size in sizes}
        jobs = [
            hours / size.accelerators
            for size in sizes
            for hours in pace.point_hours(size)
            for _ in range(size.points // len(size.batch_sizes))
        ]
        searched = None if search is None else search.elapsed(one_by_one, parallelism)
        if self.trains_nothing:
            searched = 0.0
        at_once = min(parallelism, sum(size.points for size in sizes))
        return Elapsed(at_once, elapsed(jobs, parallelism), searched)

    def cost(self, target_params: float, target_tokens: float) -> SearchCost:
        """Compared with as many runs of the target as the largest size has points."""
        return search_cost(
            sweep_flops=self.flops,
            direct_runs=self.spec.direct_runs,
            run_flops=6 * target_params * target_tokens,
        )


ASSUMED_BATCH: Final = 1024
"""Sequences of a batch around an answer that is not known yet: enough for all accelerators to be at work."""


def with_continued_models(
    spec: api.ScalingSweepSpec, configs: Mapping[str, Mapping[str, Any] | StoreError]
) -> api.ScalingSweepSpec:
    """The spec with the models of the checkpoints that sizes continue, by their config.json. Raises InvalidSpec."""
    known, errors = {}, []
    for field, uri in spec.checkpoint_uris.items():
        config = configs[uri]
        problem: Exception | None = config if isinstance(config, StoreError) else None
        try:
            if not isinstance(config, StoreError):
                known[uri] = KnownCheckpoint(uri, "", checkpoint_model(config))
        except UnsupportedModel as error:
            problem = error
        if problem is not None:
            message = f"{problem}: the model of a size that continues a checkpoint is its own"
            errors.append(SpecError(field, message))
    if errors:
        raise InvalidSpec(errors)
    return with_checkpoint_models(spec, tuple(known.values()))


def _assumed(spec: api.ScalingSweepSpec) -> Continued:
    """Places around answers that are not known yet: as many as there may be, which cost the same wherever they are."""
    found = []
    for proxy in spec.proxies:
        if proxy.around is not None:
            most = proxy.tokens // (spec.fewest_steps * spec.data.sequence_length)
            batch = max(min(ASSUMED_BATCH, most), 1)
            places = tuple((1e-4 * n, batch) for n in range(1, api.MAX_NEIGHBOURHOOD + 1))
            found.append(Neighbourhood(proxy.name, proxy.around.prediction, places))
    return Continued((), tuple(found))


def planned(written: api.ScalingSweepSpec) -> Planned:
    """The plan of a manifest's spec. Raises BadInput if it cannot be trained."""
    try:
        placed_spec = place_sizes(written)
        spec, places = placed_spec.spec, placed_spec.places
        points = plan_points(spec, continued=_assumed(spec))
        sizes = [_size(spec, own) for own in by_size(points).values()]
    except (InvalidSpec, UnsupportedModel) as error:
        raise BadInput(str(error)) from error
    placed = [
        PlacedSize(
            name=placement.proxy,
            source=placement.source,
            learning_rates=tuple(float(rate) for rate in grid.learning_rates),
            batch_sizes=grid.batch_sizes,
        )
        for placement, grid in placed_sizes(spec, places)
    ]
    if not spec.searches:
        return Planned(spec, placed, sizes, None, None)
    options = search_options(spec, len(places))
    estimate = search_estimate(points, options.max_added_points, options.target)
    return Planned(spec, placed, sizes, estimate, _first_step(spec, points, options))


def _first_step(
    spec: api.ScalingSweepSpec, points: Sequence[PlannedPoint], options: SearchOptions
) -> Step:
    """Asked of the search itself, with the hours that the operator assumes before any point has run."""
    budget = spec.budget
    options = replace(
        options,
        budget_flops=float(budget.flops) if budget and budget.flops else None,
        seconds_left=3600.0 * budget.accelerator_hours
        if budget and budget.accelerator_hours
        else None,
    )
    paces = {point.proxy.name: assumed_seconds_per_flop([point]) for point in points}
    return next_step(search_sizes(spec, points, paces), (), options)


def out_of_reach(
    sizes: Sequence[SizePlan],
    predictions: Mapping[str, api.HyperparamPredictionSpec],
    checkpoints: Mapping[str, Mapping[str, Any] | StoreError],
) -> dict[str, str]:
    """Why predictions will be refused for the size of their target, by name; those whose size is known here.

    Of a checkpoint it is if sizes continue it, whose config.json `checkpoints` has by URI.
    """
    refusals = {}
    for name, spec in predictions.items():
        params = spec.target_parameters
        config = checkpoints.get(spec.checkpoint.uri.rstrip("/")) if spec.checkpoint else None
        if isinstance(config, Mapping):
            params = parameter_counts(text_model(config)).active
        if params and (refusal := size_refusal(params, [size.params for size in sizes])):
            refusals[name] = refusal.message
    return refusals


def sizes_document(
    sizes: Sequence[SizePlan], pace: Pace, cost: SearchCost | None
) -> dict[str, Any]:
    """The sizes and their sums, as `--json` prints them."""
    return {
        "sizes": [
            {
                **asdict(size),
                "fits": {name: found and found._asdict() for name, found in size.fits.items()},
                "accelerator_hours": pace.hours(size),
                "checkpointing": {
                    **asdict(size.checkpointing),
                    "interval": size.checkpointing.interval,
                    "lost_share": size.checkpointing.lost_share,
                },
            }
            for size in sizes
        ],
        "points": sum(size.points for size in sizes),
        "tokens": sum(size.tokens for size in sizes),
        "flops": sum(size.flops for size in sizes),
        "flops_convention": "6ND",
        "accelerator_hours": sum(pace.hours(size) for size in sizes),
        "throughput": pace.in_words(sizes),
        "direct_grid_flops": cost.direct_flops if cost else None,
        "saving": cost.saving if cost else None,
    }


def price_document(planned: Planned, pace: Pace) -> dict[str, Any]:
    """What the accelerator hours cost, as `--json` prints it; null without a price."""
    per_hour = pace.price_per_hour
    return {
        "price": per_hour and per_hour * planned.hours(pace),
        "expected_price": per_hour and per_hour * planned.expected_hours(pace),
    }


def search_document(planned: Planned) -> dict[str, Any] | None:
    """What a search costs, as `--json` prints it."""
    search, first = planned.search, planned.first_step
    if search is None or first is None:
        return None
    seconds = first.least_seconds
    return {
        "expected_flops": planned.expected_flops,
        "worst_flops": search.worst_flops,
        "max_added_points": search.max_added_points,
        "basis": search.basis,
        "unaffordable_least_flops": first.least_flops,
        "unaffordable_least_hours": None if seconds is None else seconds / 3600,
    }
