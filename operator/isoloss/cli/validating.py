"""`isoloss validate`: short runs around a prediction, planned with their cost, then judged by their losses."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from isoloss import formatting, validation
from isoloss.cli import outcome, querying
from isoloss.cli.exports import Columns, Settings, print_read, refuse_idle_of_tables
from isoloss.cli.inputs import AsJson, positive, refuse_idle
from isoloss.errors import BadInput
from isoloss.laws import Laws, PredictionQuery, RefusalReason, Refused, Run, predict
from isoloss.run_sources import read_runs
from isoloss.runs import RunSet
from isoloss.validation import validate as validate_from

FACTOR, SHARE, SEEDS = 2.0, 0.3, 1
NOT_OF_PROBES = ("total_flops", "pretraining_tokens", "batch_size_tolerance", "sequence_length")
"""Of a question."""


@querying.asks(without=NOT_OF_PROBES)
def validate(
    laws: Annotated[
        str,
        typer.Argument(help="A file from isoloss fit, or the URI of a sweep in the store."),
    ],
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables of the probes, or the URI of a sweep in the store that continues the checkpoint; without any, the "
            "probes are planned."
        ),
    ] = None,
    column: Columns = None,
    settings: Settings = None,
    asked: PredictionQuery = querying.NOTHING_ASKED,
    factor: Annotated[
        float, typer.Option(help="Factor between the answer and its neighbours in the plan.")
    ] = FACTOR,
    share: Annotated[
        float, typer.Option(help="A probe's share of the budget in the plan.")
    ] = SHARE,
    seeds: Annotated[
        int, typer.Option(min=1, max=100, help="Runs per place in the plan.")
    ] = SEEDS,
    tolerance: Annotated[
        float,
        typer.Option(help="Nats that an answer may lose at the full budget and still hold."),
    ] = validation.TOLERANCE,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation between seeds, nats. Default: as the seeds of the sweep and of the probes "
            "show it, otherwise between 0.003 and 0.010 nats, or the residuals of the laws' surface if they are larger."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check a prediction with short continued runs of the checkpoint, and refine it."""
    if (asked.cpt_flops is None) is (asked.cpt_tokens is None):
        raise BadInput("give --cpt-flops or --cpt-tokens: probes are a share of that budget")
    query = querying.checked(asked)
    for option, value in (("--tolerance", tolerance), ("--noise", noise)):
        positive(option, value)
    of_the_plan = {"factor": (factor, FACTOR), "share": (share, SHARE), "seeds": (seeds, SEEDS)}
    of_the_verdict = {"tolerance": (tolerance, validation.TOLERANCE), "noise": (noise, None)}
    if runs:
        refuse_idle(of_the_plan, "is for planning probes, and probes are given: leave it out")
    else:
        refuse_idle(of_the_verdict, "is for judging probes, and none are given: leave it out")
    refuse_idle_of_tables(runs or [], column, settings)
    fitted = querying.own_laws(laws, "validate")
    if not runs:
        return _planned(fitted, query, _checked(factor, share), share, seeds, as_json)
    found = read_runs(*runs, columns=column or (), settings=settings)
    return _judged(fitted, query, runs, found, tolerance, noise, as_json)


def _checked(factor: float, share: float) -> float:
    """The factor. Raises BadInput unless both are possible."""
    if not 1.0 < factor <= 10.0:
        raise BadInput(f"--factor: must be above 1 and at most 10, not {factor:g}")
    if not 0.0 < share <= 1.0:
        raise BadInput(f"--share: must be above 0 and at most 1, as in 0.3 for 30%, not {share:g}")
    return factor


# ---------------------------------------------------------------------------------------- the plan


def _planned(
    laws: Laws, query: PredictionQuery, factor: float, share: float, seeds: int, as_json: bool
) -> int:
    answer = predict(laws, query)
    if isinstance(answer, Refused):
        return outcome.print_refused(answer, as_json=as_json)
    assert answer.cpt_flops is not None  # total_flops is no option
    budget_flops = answer.cpt_flops
    short = validation.answer_at(laws, query, share * budget_flops)
    if isinstance(short, Refused):
        if {each.reason for each in short.refusals} == {RefusalReason.BUDGET_TOO_SMALL}:
            enough = validation.smallest_share(laws, query, budget_flops, share)
            if enough is not None:
                message = short.refusals[0].message
                raise BadInput(f"--share {share:g}: {message} Give --share {enough:g} or more.")
        return outcome.print_refused(short, as_json=as_json)
    places = validation.probe_cross(
        answer.learning_rate.value,
        answer.batch_size.value,
        factor,
        multiple_of=round(query.round_to),
    )
    if query.batch_size is not None:
        places = tuple(place for place in places if place.batch_size == query.batch_size)
    flops = share * budget_flops
    document: dict[str, Any] = {
        "probes": [
            {"learning_rate": place.learning_rate, "batch_size": place.batch_size, "seeds": seeds}
            for place in places
        ],
        "tokens": None if query.cpt_tokens is None else round(share * query.cpt_tokens),
        "flops": flops,
        "total_flops": flops * len(places) * seeds,
        "share_of_budget": share * len(places) * seeds,
        "sequence_length": laws.sequence_length,
        "warnings": answer.warnings,
    }
    if as_json:
        outcome.print_document(document)
    else:
        outcome.print_warnings(answer.warnings)
        _print_plan(places, document, laws.sequence_length)
    return outcome.ANSWERED


def _print_plan(
    places: tuple[validation.Place, ...], document: dict[str, Any], length: int | None
) -> None:
    unit = "sequences" if length is None else f"sequences of {length}"
    table = outcome.grid("learning rate", f"batch size ({unit})", "FLOPs", "tokens")
    for place in places:
        table.add_row(
            formatting.learning_rate(place.learning_rate),
            formatting.batch_size(place.batch_size),
            formatting.flops(document["flops"]),
            formatting.count(document["tokens"]) or formatting.ABSENT,
        )
    outcome.console().print(table)
    runs = sum(probe["seeds"] for probe in document["probes"])
    outcome.console().print(
        f"\n{runs} continued runs of the checkpoint with fresh optimizer state: "
        f"{formatting.flops(document['total_flops'])} FLOPs, {document['share_of_budget']:.3g} times the budget."
    )


# ------------------------------------------------------------------------------------- the verdict


def _judged(
    laws: Laws,
    query: PredictionQuery,
    sources: list[str],
    found: RunSet,
    tolerance: float,
    noise: float | None,
    as_json: bool,
) -> int:
    answer = predict(laws, query)
    if isinstance(answer, Refused):
        return outcome.print_refused(answer, as_json=as_json, read=found.read)
    warnings = (*found.warnings, *_of_other_lengths(laws, found.runs), *answer.warnings)
    continued = tuple(run for run in found.runs if run.started_from != "Scratch")
    if found.runs and not continued:
        raise BadInput(
            f"{', '.join(sources)}: runs from scratch show nothing of a checkpoint: give runs that continue it"
        )
    try:
        runs = validation.in_laws_sequences(continued, laws)
        probes, tokens = validation.probes_of_runs(
            runs,
            stated_noise=noise,
            measured_noise=laws.run_noise,
            residual=laws.surface.residual_rms,
        )
        flops = tokens * _flops_per_token(laws, query, found.runs[0])
        verdict = validate_from(laws, query, probes, flops, tolerance=tolerance)
    except validation.InvalidProbes as error:
        raise BadInput(f"{', '.join(sources)}: {error}") from error
    if isinstance(verdict, Refused):
        return outcome.print_refused(verdict, as_json=as_json, read=found.read)
    warnings = (*verdict.warnings, *warnings)
    if as_json:
        notes = {"beats_neighbours": verdict.beats_neighbours, "warnings": warnings}
        outcome.print_document({**asdict(verdict), **notes, "read": found.read})
    else:
        outcome.print_warnings(warnings)
        print_read(found.read)
        _print_validation(verdict, rate_alone=query.batch_size is not None)
    return outcome.REFUSED if verdict.validated is None else outcome.ANSWERED


def _of_other_lengths(laws: Laws, runs: Sequence[Run]) -> tuple[str, ...]:
    """A warning that the probes' batch sizes are converted."""
    lengths = sorted({run.sequence_length for run in runs} - {laws.sequence_length})
    if laws.sequence_length is None or not lengths:
        return ()
    in_words = ", ".join(str(length) for length in lengths)
    return (
        f"The probes' sequence length, {in_words}, differs from the laws', {laws.sequence_length}: batch sizes are compared at equal "
        f"tokens per step, and printed in sequences of {laws.sequence_length}.",
    )


def _flops_per_token(laws: Laws, query: PredictionQuery, probe: Run) -> float:
    """As the budget counts them: of the target, if its size is known, so that a smaller proxy may stand for it."""
    if query.params is None:
        return probe.flops_per_token or 6.0 * probe.params
    return query.flops_per_token or laws.surface.flops_per_token_per_param * query.params


def _print_validation(verdict: validation.Validation, *, rate_alone: bool) -> None:
    terminal = outcome.console()
    table = outcome.grid(
        "neighbour: learning rate", "batch size", "loss less the answer's", "better"
    )
    for comparison in verdict.comparisons:
        table.add_row(
            formatting.learning_rate(comparison.neighbour.learning_rate),
            formatting.batch_size(comparison.neighbour.batch_size),
            _difference(comparison),
            comparison.better or ("-" if math.isnan(comparison.difference) else "within noise"),
        )
    terminal.print(table)
    terminal.print(f"\n{verdict.reason.value}: {verdict.message}")
    refined = verdict.refined
    if refined is not None:
        terminal.print("\nLaws and probes together, next to the laws' own answer:")
        both = outcome.grid("", "80% interval")
        both.add_row(
            "learning rate", formatting.interval(refined.learning_rate, formatting.learning_rate)
        )
        if not rate_alone:
            both.add_row(
                "batch size (sequences)",
                formatting.interval(refined.batch_size, formatting.batch_size),
            )
        terminal.print(both)


def _difference(comparison: validation.Comparison) -> str:
    if comparison.neighbour.diverged:
        return "diverged"
    if math.isnan(comparison.difference):
        return "the answer diverged"
    return f"{comparison.difference:+.4f} ± {comparison.standard_error:.4f}"
