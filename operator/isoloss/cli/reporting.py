"""`isoloss report`: laws and runs on one HTML page, and the figures as PNG."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from isoloss import formatting
from isoloss import laws as engine
from isoloss.cli import outcome, querying
from isoloss.cli.exports import Columns, Settings, print_read, refuse_idle_of_tables
from isoloss.cli.inputs import AsJson, not_an_input, positive
from isoloss.errors import BadInput
from isoloss.laws_files import write_file
from isoloss.page_status import read_page_status
from isoloss.published import PublishedOptimum, published_opinions
from isoloss.report.page import NOT_IN_EVERY_REPORT, draw_figures, png_files, render_report
from isoloss.run_sources import read_runs
from isoloss.runs import RunSet, Weights
from isoloss.savings import SearchCost
from isoloss.status import View
from isoloss.stored_sweeps import is_sweep_uri, open_sweep

SAME_LOSS = 0.02
"""Relative: the best losses of laws lie between those of runs, and may be below all of them."""


@querying.asks()
def report(
    laws: Annotated[
        str, typer.Argument(help="A file from isoloss fit, or the URI of a sweep in the store.")
    ],
    out: Annotated[Path, typer.Option(help="Write the page to this HTML file.")],
    runs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUNS",
            help="Tables or sweeps with the runs behind the laws, to draw their trajectories.",
        ),
    ] = None,
    column: Columns = None,
    settings: Settings = None,
    title: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Title of the page. By default the runs and sizes."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the figures as PNG. By default NAME-figures next to the page."
        ),
    ] = None,
    direct_grid_flops: Annotated[
        float | None,
        typer.Option(
            help="FLOPs of a grid of runs on the target itself, to compare the cost of the runs with."
        ),
    ] = None,
    known_optimum: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="LR BATCH",
            help="Learning rate and batch size that are known to be the best for a run from scratch of the prediction's "
            "total compute, to mark them beside it.",
        ),
    ] = None,
    asked: engine.PredictionQuery = querying.NOTHING_ASKED,
    as_json: AsJson = False,
) -> int:
    """Write laws and evidence, and a prediction if one is asked for, to one HTML page."""
    positive("--direct-grid-flops", direct_grid_flops)
    for number in known_optimum or ():
        positive("--known-optimum", number)
    if known_optimum and asked == querying.NOTHING_ASKED:
        raise BadInput("--known-optimum needs a prediction to mark: ask for one, or leave it out")
    refuse_idle_of_tables(runs or [], column, settings)
    not_an_input("--out", out, [laws, *(runs or []), *([settings] if settings else [])])
    if out.suffix.lower() not in ("", ".html", ".htm"):
        raise BadInput(f"--out {out}: the page is HTML: name it {out.with_suffix('.html')}")
    fitted = querying.own_laws(laws, "report")
    given = _runs(laws, runs, fitted, column or (), settings)
    found = _prediction(fitted, asked)
    answer = found if isinstance(found, engine.Prediction) else None
    refusals = found.refusals if isinstance(found, engine.Refused) else ()
    savings = _saving(given.runs, direct_grid_flops)
    drawn = draw_figures(
        fitted,
        given.runs,
        answer,
        initial_loss=asked.initial_loss,
        known_optimum=known_optimum,
    )
    page = render_report(
        fitted,
        given.runs,
        title=title or "",
        facts={
            "laws": laws,
            **({"runs": ", ".join(runs)} if runs else {}),
            **({"asked": querying.in_words(asked)} if asked != querying.NOTHING_ASKED else {}),
        },
        prediction=answer,
        no_answer=[f"No prediction: {each.reason.value}: {each.message}" for each in refusals],
        initial_loss=asked.initial_loss,
        parameters=asked.params,
        opinions=_opinions(answer, asked.params),
        savings=savings,
        warnings=given.warnings,
        figures=drawn,
        status=_status(laws),
    )
    write_file(out, page)
    files = _write_figures(figures or out.with_name(f"{out.stem}-figures"), png_files(drawn))
    warnings = [*given.warnings, *(() if found is None else found.warnings)]
    if as_json:
        notes = {"refused": refusals, "warnings": warnings}
        outcome.print_document({"report": str(out), "figures": files, **notes, "read": given.read})
    else:
        outcome.print_warnings(warnings)
        print_read(given.read)
        outcome.print_refusals(refusals)
        outcome.console().print(f"{out}, and the figures: {', '.join(files)}")
    return outcome.REFUSED if refusals else outcome.ANSWERED


def _write_figures(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """Write the figures, and remove those of an earlier report that this one does not have. Returns the paths."""
    was_ours = all((folder / name).exists() for name in files if name not in NOT_IN_EVERY_REPORT)
    for name, content in files.items():
        write_file(folder / name, content)
    for name in NOT_IN_EVERY_REPORT:
        if was_ours and name not in files:
            _remove(folder / name)
    return [str(folder / name) for name in files]


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or 'cannot be removed'}") from error


def _runs(
    laws: str,
    runs: list[str] | None,
    fitted: engine.Laws,
    columns: Sequence[str],
    settings: str | None,
) -> RunSet:
    """The runs named or those of the sweep; without either, the laws' own contours must do."""
    if runs is None and not is_sweep_uri(laws):
        return RunSet(())
    weights: Weights = "raw" if fitted.loss_kind == "raw" else "averaged"
    found = read_runs(*(runs or [laws]), weights=weights, columns=columns, settings=settings)
    if runs is None:
        return found
    return replace(found, warnings=(*found.warnings, *other_runs(found.runs, fitted)))


def other_runs(runs: Sequence[engine.Run], laws: engine.Laws) -> tuple[str, ...]:
    """A warning if these cannot be the runs behind the laws; none if they may be."""
    differences = tuple(_differences(runs, laws)) if laws.data.runs else ()
    if not differences:
        return ()
    return (f"--runs are not the runs that the laws were fitted to: {'; '.join(differences)}",)


def _differences(runs: Sequence[engine.Run], laws: engine.Laws) -> Iterator[str]:
    if len(runs) != laws.data.runs:
        yield f"{formatting.counted(len(runs), 'run')} in place of {laws.data.runs}"
    if not laws.data.sizes:
        return  # refused as a mixture, or before anything was read: the laws know of no run what it was
    # Of runs that were left out, the laws do not know the sizes.
    sizes = {run.params for run in runs if run.name not in laws.options.exclude}
    if sizes != set(laws.data.sizes):
        yield f"sizes {_counts(sizes)} in place of {_counts(laws.data.sizes)}"
    yield from _other_losses(runs, laws)
    lengths = {run.sequence_length for run in runs}
    if laws.sequence_length is not None and lengths != {laws.sequence_length}:
        given = ", ".join(str(length) for length in sorted(lengths))
        yield f"sequences of {given} tokens in place of {laws.sequence_length}"
    tokenizers = {run.tokenizer for run in runs} - {None}
    if laws.tokenizer is not None and tokenizers - {laws.tokenizer}:
        yield "another tokenizer"


def _other_losses(runs: Sequence[engine.Run], laws: engine.Laws) -> Iterator[str]:
    """If their losses reach neither as high as the highest nor as low as the lowest best loss behind the laws."""
    losses = [float(loss) for run in runs for loss in run.losses if math.isfinite(loss)]
    low, high = laws.data.lowest_loss, laws.data.highest_loss
    if not losses or low is None or high is None:
        return
    if min(losses) > low * (1.0 + SAME_LOSS) or max(losses) < high * (1.0 - SAME_LOSS):
        given = f"{formatting.loss(min(losses))} to {formatting.loss(max(losses))}"
        yield f"losses of {given} in place of {formatting.loss(low)} to {formatting.loss(high)}"


def _counts(sizes: Collection[float]) -> str:
    return ", ".join(formatting.count(size) for size in sorted(sizes))


def _status(laws: str) -> View | None:
    """What the operator's page shows, if LAWS is a sweep in the store that has one."""
    if not is_sweep_uri(laws):
        return None
    sweep = open_sweep(laws)
    return View(read_page_status(sweep.store, sweep.folder))


def _prediction(
    laws: engine.Laws, asked: engine.PredictionQuery
) -> engine.Prediction | engine.Refused | None:
    """None if none was asked for."""
    if asked == querying.NOTHING_ASKED:
        return None
    return engine.predict(laws, querying.checked(asked))


def _opinions(
    prediction: engine.Prediction | None, params: float | None
) -> tuple[PublishedOptimum, ...]:
    if prediction is None:
        return ()
    return published_opinions(total_flops=prediction.total_flops.value, params=params)[0]


def _saving(runs: tuple[engine.Run, ...], direct_grid_flops: float | None) -> SearchCost | None:
    if direct_grid_flops is None:
        return None
    spent = sum(
        (run.flops_per_token or 6 * run.params) * float(run.tokens[-1])
        for run in runs
        if run.tokens.size
    )
    if not spent:
        raise BadInput("--direct-grid-flops needs --runs, to know what the sweep cost")
    return SearchCost(direct_flops=direct_grid_flops, proxy_flops=spent)
