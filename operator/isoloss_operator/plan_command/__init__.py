"""`isoloss plan`: what a sweep would train, cost and take, before it is applied."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from isoloss.cli.inputs import positive
from isoloss.cli.outcome import ANSWERED, command, print_document
from isoloss.errors import BadInput
from isoloss_operator.plan_command.figures import Pace, search_document, sizes_document
from isoloss_operator.plan_command.manifest import (
    read_derived_proxies,
    read_manifest,
    read_validations,
)
from isoloss_operator.plan_command.planned import planned
from isoloss_operator.plan_command.printed import print_plan, print_validations
from isoloss_operator.planning.pace import PEAK_FLOPS
from isoloss_operator.planning.specs import InvalidSpec


@command
def plan(
    manifest: Annotated[
        Path,
        typer.Argument(help="A ScalingSweep manifest (YAML), with or without its predictions."),
    ],
    tokens_per_second: Annotated[
        float | None,
        typer.Option(help="Throughput of one accelerator, the same for every size."),
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(
            help="Share of the peak that training reaches by the FLOPs it executes: `executed` in a trainer's log, not its MFU. Default: 0.35, of dense models below 300M parameters 0.3, of mixtures of experts 0.2."
        ),
    ] = None,
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
    if utilisation is not None and utilisation > 1:
        raise BadInput(f"--utilisation: must be at most 1, not {utilisation:g}")
    if (target_params is None) != (target_tokens is None):
        raise BadInput("give --target-params and --target-tokens together")
    try:
        validations = read_validations(manifest)
        written = read_derived_proxies(read_manifest(manifest))
    except InvalidSpec as error:
        raise BadInput(str(error)) from error
    found = planned(written)
    pace = Pace(tokens_per_second, peak_flops, utilisation)
    has_target = target_params is not None and target_tokens is not None
    cost = found.cost(target_params or 0.0, target_tokens or 0.0) if has_target else None
    if as_json:
        print_document(
            {
                **sizes_document(found.sizes, pace, cost),
                "search": search_document(found.search),
                "elapsed": asdict(found.elapsed(pace)),
                "placed": [asdict(each) for each in found.placed],
                "validations": {name: asdict(each) for name, each in validations.items()},
            }
        )
    else:
        print_plan(found, pace, cost)
        print_validations(validations)
    return ANSWERED
