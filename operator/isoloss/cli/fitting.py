"""`isoloss fit`: runs in, laws or refusals out."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from isoloss import formatting
from isoloss.cli import outcome
from isoloss.cli.exports import Columns, Settings, print_read, refuse_idle_of_tables
from isoloss.cli.inputs import AsJson, choice, not_an_input, positive, refuse_idle
from isoloss.fitting import fit_laws
from isoloss.laws import FitOptions, Laws, refused_parts
from isoloss.laws_files import write_laws
from isoloss.report import content
from isoloss.run_sources import read_runs
from isoloss.tables import is_table


class Weights(StrEnum):
    """Weights whose loss is fitted, in the words of a sweep's `fit.weights`."""

    AVERAGED = "Averaged"
    RAW = "Raw"


class Form(StrEnum):
    """Form of the hyperparameter laws, in the words of a sweep's `fit.form`."""

    POWER = "PowerLawOfLoss"
    LINEAR = "LinearInLogCompute"


def fit(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="CSV or Parquet tables, exports of W&B, TensorBoard, MLflow or Trackio, "
            "trainer_state.json files, or URIs of sweeps in the store."
        ),
    ],
    column: Columns = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the laws to this file, for predict and report.")
    ] = None,
    weights: Annotated[
        Weights,
        choice(Weights, "Weights whose loss is fitted (sweeps only)."),
    ] = Weights.AVERAGED,
    irreducible_loss: Annotated[
        float | None,
        typer.Option(help="Fix L0, in nats per token. Fitted by default."),
    ] = None,
    form: Annotated[
        Form,
        choice(Form, "Form of the laws of learning rate and batch size."),
    ] = Form.POWER,
    bootstrap_samples: Annotated[
        int, typer.Option(min=20, max=20_000, help="Number of bootstrap draws for the intervals.")
    ] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the bootstrap.")] = 0,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN", help="Leave out the run of this name. May be given more than once."
        ),
    ] = None,
    keep_outliers: Annotated[
        bool,
        typer.Option("--keep-outliers", help="Keep runs with impossible losses; they are named."),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Fit the laws of learning rate, batch size and loss to training runs."""
    positive("--irreducible-loss", irreducible_loss)
    not_an_input("--out", out, [*runs, *([settings] if settings else [])])
    if all(map(is_table, runs)):
        refuse_idle(
            {"weights": (weights, Weights.AVERAGED)},
            "a table has losses of one kind, and only sweeps have a choice: leave it out",
        )
    refuse_idle_of_tables(runs, column, settings)
    given = read_runs(
        *runs,
        weights="raw" if weights is Weights.RAW else "averaged",
        columns=column or (),
        settings=settings,
    )
    options = FitOptions(
        irreducible_loss=irreducible_loss,
        form=form.value,
        bootstrap_samples=bootstrap_samples,
        seed=seed,
        exclude=tuple(exclude or ()),
        keep_outliers=keep_outliers,
    )
    laws = fit_laws(given, options)
    if out is not None:
        write_laws(laws, out)
    if as_json:
        found = asdict(laws)
        del found["contours"], found["draws"]  # numbers by the thousand: `--out` keeps them
        outcome.print_document({**found, "read": [asdict(each) for each in given.read]})
    else:
        outcome.print_warnings(laws.warnings)
        print_read(given.read)
        _print_laws(laws, out)
    refused = laws.status == "refused" or laws.loss_compute.refusal is not None
    return outcome.REFUSED if refused else outcome.ANSWERED


def _print_laws(laws: Laws, out: Path | None) -> None:
    terminal = outcome.console()
    table = outcome.grid("law", "status", "equation", "fit")
    for row in content.laws_table(laws).rows:
        table.add_row(*row)
    terminal.print(table)
    terminal.print()
    optima = outcome.grid("loss", "parameters", "learning rate", "batch size", "tokens", "FLOPs")
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
    if laws.only_batch_size is not None:
        terminal.print(
            f"Every run has a batch size of {laws.only_batch_size:g}: the best learning rate at it is fitted, for isoloss predict "
            f"--batch-size {laws.only_batch_size:g}."
        )
    elif laws.status == "refused" and laws.rate_at_batch.curve is not None:
        low, high = laws.rate_at_batch.smallest_batch, laws.rate_at_batch.largest_batch
        terminal.print(
            f"The best learning rate at a given batch size is fitted, for isoloss predict --batch-size ({low:g} to {high:g})."
        )
    for reason, message in refused_parts(laws):
        terminal.print(f"refused: {reason}: {message}")
    if laws.excluded:
        terminal.print(f"runs or parts of runs left out: {len(laws.excluded)}; --json lists them")
    if out is not None:
        terminal.print(f"written to {out}")
