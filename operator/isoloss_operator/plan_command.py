"""`isoloss plan`: what a sweep would train and cost, before it is applied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from isoloss import formatting
from isoloss.cli.inputs import positive
from isoloss.cli.outcome import (
    ANSWERED,
    command,
    console,
    grid,
    print_document,
)
from isoloss.errors import BadInput
from isoloss.report.content import saving_sentence
from isoloss.savings import SearchCost, search_cost
from isoloss_contract.ledger import Placement
from isoloss_contract.store import Store, StoreError
from isoloss_operator.api import API_VERSION, PREDICTION_KIND, SWEEP_KIND, ScalingSweepSpec
from isoloss_operator.api.yaml_text import read_documents
from isoloss_operator.planning.architectures import UnsupportedModel
from isoloss_operator.planning.evaluation_share import (
    GOAL,
    affordable_sequences,
    evaluation_share,
)
from isoloss_operator.planning.flops import Convention, token_flops
from isoloss_operator.planning.pace import DEFAULT_UTILISATION, PEAK_FLOPS
from isoloss_operator.planning.placement import (
    COVERAGE,
    placed_sizes,
    placements,
    with_placed_grids,
)
from isoloss_operator.planning.points import PlannedPoint, plan_points
from isoloss_operator.planning.probe_cost import ProbeCost, probe_cost
from isoloss_operator.planning.search_cost import SearchEstimate, search_estimate
from isoloss_operator.planning.specs import (
    InvalidSpec,
    like_checkpoints,
    parse_prediction_spec,
    parse_sweep_spec,
    with_derived_proxies,
)

MAX_MANIFEST_BYTES = 4 * 2**20


@dataclass(frozen=True)
class SizePlan:
    """All points of one proxy."""

    name: str
    points: int
    params: int
    """Active parameters in matrix products, head included."""
    total_params: int
    warmup_tokens: int
    """Of each point."""
    tokens: float
    """Of all points, without cooldowns."""
    cooldown_tokens: float
    """What cooldowns take beside them."""
    flops: float
    executed_flops: float
    """Including attention scores: what the accelerators execute and hours are computed from."""
    evaluation_share: float
    """Of a run's compute, beside what training takes; not in the hours."""


@command
def plan(
    manifest: Annotated[
        Path,
        typer.Argument(help="A ScalingSweep manifest (YAML), its predictions beside it or not."),
    ],
    tokens_per_second: Annotated[
        float | None,
        typer.Option(help="Throughput of one accelerator, the same for every size."),
    ] = None,
    utilisation: Annotated[
        float, typer.Option(help="Share of the peak FLOPs that training reaches.")
    ] = DEFAULT_UTILISATION,
    peak_flops: Annotated[
        float, typer.Option(help="FLOPs per second of one accelerator; default: H100, bf16.")
    ] = PEAK_FLOPS,
    target_params: Annotated[
        float | None, typer.Option(help="Active parameters of the target, for the saving.")
    ] = None,
    target_tokens: Annotated[
        float | None, typer.Option(help="Planned tokens of the target, for the saving.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Count a sweep's points, tokens, FLOPs and accelerator hours, what a search costs, and what it saves."""
    for option, value in (
        ("--tokens-per-second", tokens_per_second),
        ("--utilisation", utilisation),
        ("--peak-flops", peak_flops),
        ("--target-params", target_params),
        ("--target-tokens", target_tokens),
    ):
        positive(option, value)
    if utilisation > 1:
        raise BadInput(f"--utilisation: must be at most 1, not {utilisation:g}")
    if (target_params is None) != (target_tokens is None):
        raise BadInput("give --target-params and --target-tokens together")
    try:
        validations = _validations(manifest)
        written = _with_derived_proxies(read_manifest(manifest))
        placed = placements(written)
        spec = with_placed_grids(written, placed)
        sizes = _sizes(spec)
        search = _search(spec, len(placed))
    except (InvalidSpec, UnsupportedModel) as error:
        raise BadInput(str(error)) from error
    pace = _Pace(tokens_per_second, utilisation * peak_flops)
    cost = _cost(spec, sizes, target_params, target_tokens)
    if as_json:
        document = {**_document(sizes, pace, cost), "search": _search_document(search)}
        document["placed"] = [asdict(each) for each in _placed_sizes(spec, placed)]
        print_document(
            {**document, "validations": {name: asdict(each) for name, each in validations.items()}}
        )
    else:
        _print_plan(spec, sizes, pace, cost)
        _print_placed(written, _placed_sizes(spec, placed))
        _print_search(search)
        _print_validations(validations)
    return ANSWERED


def read_manifest(path: Path) -> ScalingSweepSpec:
    """The spec of the one ScalingSweep in a YAML file. Raises BadInput or InvalidSpec.

    Proxies with `like` are not derived yet: only the file is read.
    """
    sweeps = _objects(path, SWEEP_KIND)
    if len(sweeps) != 1:
        raise BadInput(
            f"{path}: holds {len(sweeps)} objects of kind {SWEEP_KIND} ({API_VERSION}), not one"
        )
    spec = sweeps[0].get("spec")
    if not isinstance(spec, dict):
        raise BadInput(f"{path}: spec: missing")
    return parse_sweep_spec(spec)


def _objects(path: Path, kind: str) -> list[dict[str, Any]]:
    """The objects of a kind of ours in a YAML file. Raises BadInput."""
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise BadInput(f"{path}: larger than {MAX_MANIFEST_BYTES} bytes")
        documents = read_documents(path.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or 'cannot be read'}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not YAML: {error}") from error
    return [
        item
        for item in documents
        if isinstance(item, dict)
        and (item.get("kind"), item.get("apiVersion")) == (kind, API_VERSION)
    ]


def _validations(path: Path) -> dict[str, ProbeCost]:
    """What the probes of each prediction in the file cost, by its name. Raises BadInput or InvalidSpec."""
    costs = {}
    for item in _objects(path, PREDICTION_KIND):
        spec, metadata = item.get("spec"), item.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(spec, dict):
            raise BadInput(f"{path}: spec of {PREDICTION_KIND} {name}: missing")
        if (cost := probe_cost(parse_prediction_spec(spec))) is not None:
            costs[str(name)] = cost
    return costs


def _with_derived_proxies(spec: ScalingSweepSpec) -> ScalingSweepSpec:
    """The spec with derived proxies; reads the config.json of their checkpoints."""
    uris = like_checkpoints(spec).values()
    return with_derived_proxies(spec, {uri: _model_config(uri) for uri in uris})


def _model_config(checkpoint: str) -> dict[str, Any] | StoreError:
    try:
        return Store(checkpoint, follow_links=True).read_json_object("config.json")
    except StoreError as error:
        return error


def _sizes(spec: ScalingSweepSpec) -> list[SizePlan]:
    by_size: dict[str, list[PlannedPoint]] = defaultdict(list)
    for point in plan_points(spec):
        by_size[point.proxy.name].append(point)
    return [_size(spec, name, points) for name, points in by_size.items()]


def _search(spec: ScalingSweepSpec, placed_sizes: int) -> SearchEstimate | None:
    """What a sequential search of the spec costs; None for an exhaustive sweep."""
    if not spec.searches:
        return None
    search = spec.search
    return search_estimate(
        plan_points(spec), search.extend_grid.limit(placed_sizes), search.replicates
    )


def _size(spec: ScalingSweepSpec, name: str, points: list[PlannedPoint]) -> SizePlan:
    proxy = points[0].proxy
    per_token = token_flops(proxy.model, spec.data.sequence_length)
    tokens = float(sum(point.tokens for point in points))
    cooldown_tokens = float(sum(point.cooldown_tokens for point in points))
    counts = proxy.parameters
    return SizePlan(
        name=name,
        points=len(points),
        params=counts.active,
        total_params=counts.body_total + counts.head + counts.embedding + counts.other,
        warmup_tokens=proxy.warmup_tokens,
        tokens=tokens,
        cooldown_tokens=cooldown_tokens,
        flops=sum(point.flops for point in points),
        executed_flops=per_token.total(Convention.EXACT) * (tokens + cooldown_tokens),
        evaluation_share=evaluation_share(spec, proxy.tokens),
    )


@dataclass(frozen=True)
class _Pace:
    """Throughput of one accelerator."""

    tokens_per_second: float | None
    flops_per_second: float

    def hours(self, size: SizePlan) -> float:
        """Accelerator hours of one size."""
        if self.tokens_per_second is not None:
            return (size.tokens + size.cooldown_tokens) / self.tokens_per_second / 3600
        return size.executed_flops / self.flops_per_second / 3600

    def in_words(self) -> str:
        if self.tokens_per_second is not None:
            return f"{formatting.number(self.tokens_per_second)} tokens per second and accelerator"
        return f"{formatting.flops(self.flops_per_second)} FLOPs per second and accelerator, attention included"


def _cost(
    spec: ScalingSweepSpec,
    sizes: list[SizePlan],
    target_params: float | None,
    target_tokens: float | None,
) -> SearchCost | None:
    if target_params is None or target_tokens is None:
        return None
    return search_cost(
        sweep_flops=sum(size.flops for size in sizes),
        direct_runs=spec.direct_runs,
        run_flops=6 * target_params * target_tokens,
    )


def _document(sizes: list[SizePlan], pace: _Pace, cost: SearchCost | None) -> dict[str, Any]:
    return {
        "sizes": [
            {
                "name": size.name,
                "points": size.points,
                "params": size.params,
                "total_params": size.total_params,
                "warmup_tokens": size.warmup_tokens,
                "tokens": size.tokens,
                "cooldown_tokens": size.cooldown_tokens,
                "flops": size.flops,
                "executed_flops": size.executed_flops,
                "accelerator_hours": pace.hours(size),
                "evaluation_share": size.evaluation_share,
            }
            for size in sizes
        ],
        "points": sum(size.points for size in sizes),
        "tokens": sum(size.tokens for size in sizes),
        "cooldown_tokens": sum(size.cooldown_tokens for size in sizes),
        "flops": sum(size.flops for size in sizes),
        "flops_convention": Convention.SIX_ND.value,
        "accelerator_hours": sum(pace.hours(size) for size in sizes),
        "throughput": pace.in_words(),
        "direct_grid_flops": cost.direct_flops if cost else None,
        "saving": cost.saving if cost else None,
    }


def _search_document(search: SearchEstimate | None) -> dict[str, Any] | None:
    if search is None:
        return None
    return {
        "expected_flops": search.expected_flops,
        "worst_flops": search.worst_flops,
        "max_added_points": search.max_added_points,
        "replicates": search.replicates,
        "basis": search.basis,
    }


@dataclass(frozen=True)
class PlacedSize:
    """The first points of a size without a grid."""

    name: str
    source: str
    """Whose laws placed them."""
    learning_rates: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    """Sequences."""


def _placed_sizes(spec: ScalingSweepSpec, placed: Sequence[Placement]) -> list[PlacedSize]:
    """`spec` has the grids of what is placed."""
    return [
        PlacedSize(
            name=placement.proxy,
            source=placement.source,
            learning_rates=tuple(float(rate) for rate in grid.learning_rates),
            batch_sizes=grid.batch_sizes,
        )
        for placement, grid in placed_sizes(spec, placed)
    ]


def _print_placed(spec: ScalingSweepSpec, placed: Sequence[PlacedSize]) -> None:
    for size in placed:
        rates = ", ".join(formatting.learning_rate(rate) for rate in size.learning_rates)
        batches = ", ".join(map(str, size.batch_sizes))
        console().print(
            f"Grid of {size.name}, placed by {size.source}: learning rates {rates}; batch sizes "
            f"{batches} sequences."
        )
    if spec.search.prior is not None:
        console().print(
            f"In the cluster the laws of ScalingSweep {spec.search.prior.name} place them instead; other batch "
            "sizes and learning rates cost the same."
        )
    elif placed:
        console().print(COVERAGE)


def _print_search(search: SearchEstimate | None) -> None:
    if search is None:
        return
    expected, worst = search.expected_flops, search.worst_flops
    console().print(
        f"Sequential search: {formatting.flops(expected)} FLOPs expected "
        f"({expected / search.grid_flops:.0%} of the whole grid), {formatting.flops(worst)} at worst "
        f"(the whole grid and {search.max_added_points} added points), {search.replicates} repeats with other seeds included. "
        f"{search.basis}"
    )


def _print_validations(validations: Mapping[str, ProbeCost]) -> None:
    for name, cost in validations.items():
        if cost.flops is not None:
            amount = f"{formatting.flops(cost.flops)} FLOPs"
        else:
            amount = f"{formatting.count(cost.tokens)} tokens"
        console().print(
            f"Validation of {name}, beside that: at most {cost.runs} probes, {amount}, "
            f"{cost.share_of_budget:.3g} times the prediction's budget."
        )
        limit = cost.max_flops
        if limit is not None and cost.flops is not None and cost.flops > limit:
            console().print(
                f"over its budget of {formatting.flops(limit)} FLOPs: some probes may not start"
            )


def _print_plan(
    spec: ScalingSweepSpec, sizes: list[SizePlan], pace: _Pace, cost: SearchCost | None
) -> None:
    terminal = console()
    table = grid(
        "size",
        "points",
        "active",
        "in all",
        "tokens",
        "FLOPs (6ND)",
        "accelerator h",
        "evaluation",
    )
    for size in sizes:
        table.add_row(
            size.name,
            str(size.points),
            formatting.count(size.params),
            formatting.count(size.total_params),
            formatting.count(size.tokens),
            formatting.flops(size.flops),
            formatting.number(pace.hours(size)),
            f"{size.evaluation_share:.1%}",
        )
    hours = sum(pace.hours(size) for size in sizes)
    flops = sum(size.flops for size in sizes)
    points = sum(size.points for size in sizes)
    tokens = sum(size.tokens for size in sizes)
    table.add_row(
        "all",
        str(points),
        "",
        "",
        formatting.count(tokens),
        formatting.flops(flops),
        formatting.number(hours),
        "",
    )
    terminal.print(table)
    terminal.print(f"\nAccelerator hours at {pace.in_words()}, for the whole grid.")
    terminal.print(_warmup_sentence(sizes))
    cooldown_tokens = sum(size.cooldown_tokens for size in sizes)
    if cooldown_tokens:
        terminal.print(
            f"FLOPs and hours include cooldowns of {formatting.count(cooldown_tokens)} tokens, "
            f"{cooldown_tokens / tokens:.0%} of the runs' own."
        )
    _print_evaluation(spec)
    if spec.budget is not None and spec.budget.flops and flops > float(spec.budget.flops):
        terminal.print(
            f"over the budget of {formatting.flops(float(spec.budget.flops))} FLOPs: some points would not start"
        )
    limit = spec.budget.accelerator_hours if spec.budget is not None else None
    if limit is not None and hours > limit:
        terminal.print(f"over the budget of {limit} accelerator hours at this throughput")
    if cost is not None:
        terminal.print(saving_sentence(cost))
    else:
        terminal.print(
            "--target-params and --target-tokens tell the saving against a direct grid."
        )


def _warmup_sentence(sizes: list[SizePlan]) -> str:
    lengths = {size.warmup_tokens for size in sizes}
    if len(lengths) == 1:
        return f"Every run warms up over {formatting.count(lengths.pop())} tokens."
    each = ", ".join(f"{size.name} {formatting.count(size.warmup_tokens)}" for size in sizes)
    return f"Tokens of the warm-up: {each}."


def _print_evaluation(spec: ScalingSweepSpec) -> None:
    shortest = min(proxy.tokens for proxy in spec.proxies)
    share = evaluation_share(spec, shortest)
    if share > GOAL:
        fewer = affordable_sequences(spec, shortest)
        console().print(
            f"Evaluations take up to {share:.1%} of a run beside that: for {GOAL:.0%}, set "
            f"data.validation.sequencesPerDomain to {fewer}, or fewer evaluation.perDecade with more "
            "sequences."
        )
