"""`isoloss plan`: what a sweep would train, cost and take, before it is applied."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from isoloss.cli.inputs import positive
from isoloss.cli.outcome import ANSWERED, command, print_document
from isoloss.errors import BadInput
from isoloss.savings import SearchCost, search_cost
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.plan_command.figures import (
    Pace,
    SizePlan,
    elapsed_hours,
    placed_grids,
    search_document,
    search_of,
    sizes_document,
    sizes_of,
)
from isoloss_operator.plan_command.manifest import (
    read_derived_proxies,
    read_manifest,
    read_validations,
)
from isoloss_operator.plan_command.printed import (
    print_elapsed,
    print_placed,
    print_search,
    print_sizes,
    print_validations,
)
from isoloss_operator.planning.architectures import UnsupportedModel
from isoloss_operator.planning.pace import DEFAULT_UTILISATION, PEAK_FLOPS
from isoloss_operator.planning.placement import placements, with_placed_grids
from isoloss_operator.planning.specs import InvalidSpec


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
        validations = read_validations(manifest)
        written = read_derived_proxies(read_manifest(manifest))
        placed = placements(written)
        spec = with_placed_grids(written, placed)
        sizes = sizes_of(spec)
        search = search_of(spec, len(placed))
    except (InvalidSpec, UnsupportedModel) as error:
        raise BadInput(str(error)) from error
    pace = Pace(tokens_per_second, utilisation * peak_flops)
    cost = _cost(spec, sizes, target_params, target_tokens)
    took = elapsed_hours(spec, sizes, pace, search)
    grids = placed_grids(spec, placed)
    if as_json:
        print_document(
            {
                **sizes_document(sizes, pace, cost),
                "search": search_document(search),
                "elapsed": asdict(took),
                "placed": [asdict(each) for each in grids],
                "validations": {name: asdict(each) for name, each in validations.items()},
            }
        )
    else:
        print_sizes(spec, sizes, pace, cost)
        print_placed(written, grids)
        print_search(search)
        print_elapsed(took, sizes)
        print_validations(validations)
    return ANSWERED


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
