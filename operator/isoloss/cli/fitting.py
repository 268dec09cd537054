"""`isoloss fit`: runs in, laws or refusals out."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from isoloss import formatting
from isoloss.cli import documents
from isoloss.cli.inputs import positive, read_runs, write_file
from isoloss.cli.outcome import (
    ANSWERED,
    REFUSED,
    BadInput,
    command,
    console,
    grid,
    print_document,
    print_warnings,
)
from isoloss.laws import FitOptions, LawForm, Laws, fit_laws, laws_to_json
from isoloss.report import content


class LossChoice(StrEnum):
    """Weights whose loss is fitted; a table has only one kind."""

    averaged = "averaged"
    raw = "raw"


class FormChoice(StrEnum):
    """Form of the hyperparameter laws."""

    power = "power"
    log_linear = "log-linear"


FORMS: dict[FormChoice, LawForm] = {
    FormChoice.power: "PowerLawOfLoss",
    FormChoice.log_linear: "LinearInLogCompute",
}


@command
def fit(
    runs: Annotated[
        list[str], typer.Argument(help="CSV or Parquet tables, or sweeps' URIs in the store.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write the laws here, for predict and report.")
    ] = None,
    loss: Annotated[
        LossChoice, typer.Option(help="Weights whose loss is fitted, for sweeps in the store.")
    ] = LossChoice.averaged,
    irreducible_loss: Annotated[str, typer.Option(help="L0 in nats per token, or free.")] = "free",
    form: Annotated[
        FormChoice,
        typer.Option(help="power: power laws of the loss; log-linear: linear in ln compute."),
    ] = FormChoice.power,
    bootstrap_samples: Annotated[
        int, typer.Option(min=20, max=20_000, help="Draws behind the intervals.")
    ] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Fit the laws of learning rate, batch size and loss over compute to training runs."""
    given = read_runs(runs, loss.value)
    options = FitOptions(
        irreducible_loss=_irreducible(irreducible_loss),
        form=FORMS[form],
        bootstrap_samples=bootstrap_samples,
        seed=seed,
    )
    laws = fit_laws(given.runs, options, provisional=given.provisional)
    if out is not None:
        write_file(out, json.dumps(laws_to_json(laws), allow_nan=False))
    if as_json:
        print_document(documents.fit(laws, given.warnings))
    else:
        print_warnings([*given.warnings, *laws.warnings])
        _print_laws(laws, out)
    return REFUSED if laws.refusals else ANSWERED


def _irreducible(text: str) -> float | None:
    if text == "free":
        return None
    try:
        value = float(text)
    except ValueError:
        raise BadInput(f"--irreducible-loss: {text!r} is neither free nor a number") from None
    positive("--irreducible-loss", value)
    return value


def _print_laws(laws: Laws, out: Path | None) -> None:
    terminal = console()
    table = grid("law", "status", "equation", "fit")
    for row in content.laws_table(laws).rows:
        table.add_row(*row)
    terminal.print(table)
    terminal.print()
    optima = grid("loss", "parameters", "learning rate", "batch size", "tokens", "FLOPs")
    for item in laws.frontier:
        if item.status != "refused":
            optima.add_row(
                formatting.loss(item.loss),
                formatting.count(item.params),
                formatting.learning_rate(item.learning_rate),
                formatting.batch_size(item.batch_size),
                formatting.count(item.tokens),
                formatting.flops(item.flops),
            )
    if optima.row_count:
        terminal.print(optima)
    for reason, message in content.refusals(laws):
        terminal.print(f"refused: {reason}: {message}")
    if laws.excluded:
        terminal.print(f"{len(laws.excluded)} runs or parts of runs left out; --json lists them")
    if out is not None:
        terminal.print(f"written to {out}")
