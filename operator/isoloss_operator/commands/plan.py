"""`isoloss plan`: what a sweep would train, cost and take, before it is applied."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from isoloss import formatting
from isoloss.cli.inputs import AsJson, optional_count, positive, refuse_idle
from isoloss.cli.outcome import ANSWERED, print_document, print_warnings
from isoloss.design import Target
from isoloss.errors import BadInput
from isoloss_operator.commands import costs
from isoloss_operator.commands.manifest_reader import (
    pod_warnings,
    read_checkpoints,
    read_manifest,
    recipe_warnings,
)
from isoloss_operator.commands.options import PricePerHour
from isoloss_operator.commands.printed import print_plan, print_refused, print_validations
from isoloss_operator.commands.worth import outlooks, outlooks_document, print_outlooks
from isoloss_operator.planning import flops
from isoloss_operator.planning.specs import InvalidSpec

FEWEST = 10_000.0
"""Parameters, or tokens, of a target; smaller counts are in billions, and a grid of such runs would seem cheaper than any sweep."""
FEWEST_FLOPS = 1e9
"""Per second of an accelerator; smaller numbers are in tera or peta."""
UTILISATIONS = (
    f"{flops.DENSE_UTILISATION:g}, of dense models below {formatting.count(flops.SMALL_PARAMETERS)} parameters "
    f"{flops.SMALL_UTILISATION:g}, of mixtures of experts {flops.MIXTURE_UTILISATION:g}"
)
"""What is assumed, as the help says it."""


def plan(
    manifest: Annotated[
        Path,
        typer.Argument(help="A ScalingSweep manifest (YAML), with or without its predictions."),
    ],
    tokens_per_second: Annotated[
        float | None,
        typer.Option(help="Throughput of one accelerator at work, the same for every size."),
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(
            help="Share of the peak that training reaches by the FLOPs it executes: `executed` in a trainer's log, "
            f"not its MFU. Default: {UTILISATIONS}."
        ),
    ] = None,
    peak_flops: Annotated[
        float, typer.Option(help="FLOPs per second of one accelerator; default: H100, bf16.")
    ] = flops.PEAK_FLOPS,
    price_per_hour: PricePerHour = None,
    target_params: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT",
            help="Active parameters of the target, such as 8B: for what the answer is expected to lose.",
        ),
    ] = None,
    target_tokens: Annotated[
        str | None,
        typer.Option(metavar="COUNT", help="Planned tokens of the target, such as 55B."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Count a sweep's points, tokens, FLOPs and accelerator hours, what a search costs, and what its answer is expected to lose."""
    pace = _pace(tokens_per_second, utilisation, peak_flops, price_per_hour)
    target = _target(target_params, target_tokens)
    try:
        sweep, predictions, judging, of_manifest = read_manifest(manifest)
        checkpoints = read_checkpoints(sweep, *judging.values())
        whole = costs.with_continued_models(sweep, checkpoints)
        found = costs.planned(whole)
        validations = {
            name: costs.planned(costs.with_continued_models(spec, checkpoints))
            for name, spec in judging.items()
        }
    except InvalidSpec as error:
        raise BadInput(str(error)) from error
    of_pods = [each for spec in (sweep, *judging.values()) for each in pod_warnings(spec)]
    warnings = [*of_manifest, *of_pods, *recipe_warnings(whole)]
    refused = costs.out_of_reach(found.sizes, predictions, checkpoints)
    cost = found.cost(*target) if target else None
    outlook = outlooks(found, Target(*target)) if target else None
    if as_json:
        print_document(
            {
                **costs.sizes_document(found.sizes, pace, cost),
                "search": costs.search_document(found),
                "elapsed": asdict(found.elapsed(pace)),
                **costs.price_document(found, pace),
                "placed": [asdict(each) for each in found.placed],
                "validations": {
                    name: costs.sizes_document(each.sizes, pace, None)
                    for name, each in validations.items()
                },
                "refused_predictions": refused,
                "warnings": warnings,
                "outlook": outlook and outlooks_document(outlook),
            }
        )
    else:
        print_warnings(warnings)
        print_plan(found, pace, cost)
        if outlook is not None:
            print_outlooks(outlook)
        print_validations(validations, pace)
        print_refused(refused)
    return ANSWERED


def _pace(
    tokens_per_second: float | None,
    utilisation: float | None,
    peak_flops: float,
    price_per_hour: float | None,
) -> costs.Pace:
    """Raises BadInput for an impossible number, and for one that would do nothing."""
    for option, value in (
        ("--tokens-per-second", tokens_per_second),
        ("--utilisation", utilisation),
        ("--peak-flops", peak_flops),
        ("--price-per-hour", price_per_hour),
    ):
        positive(option, value)
    if tokens_per_second is not None:
        refuse_idle(
            {"utilisation": (utilisation, None), "peak_flops": (peak_flops, flops.PEAK_FLOPS)},
            "--tokens-per-second already says how fast: leave one out",
        )
    if peak_flops < FEWEST_FLOPS:
        raise BadInput(
            f"--peak-flops: {peak_flops:g} per second is no accelerator's: write 989 TFLOPs as 989e12"
        )
    if utilisation is not None and utilisation > 1:
        raise BadInput(
            f"--utilisation: must be at most 1, as in 0.45 for 45%, not {utilisation:g}"
        )
    return costs.Pace(tokens_per_second, peak_flops, utilisation, price_per_hour)


def _target(params: str | None, tokens: str | None) -> tuple[float, float] | None:
    """Parameters and tokens. Raises BadInput for one without the other, and for counts in billions."""
    found = optional_count("--target-params", params), optional_count("--target-tokens", tokens)
    for option, value in zip(("--target-params", "--target-tokens"), found, strict=True):
        if value is not None and value < FEWEST:
            raise BadInput(
                f"{option}: {value:g} is not a target: write {value:g} billion as {value:g}B"
            )
    if found == (None, None):
        return None
    if found[0] is None or found[1] is None:
        raise BadInput("give --target-params and --target-tokens together")
    return found[0], found[1]
