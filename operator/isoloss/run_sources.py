"""Runs from tables and from sweeps in the store, in one list."""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath

from isoloss import tables
from isoloss.errors import BadInput
from isoloss.laws import Run
from isoloss.runs import RunSet, Weights
from isoloss.stored_sweeps import is_sweep_uri, open_sweep, sweep_runs


def read_runs(
    *sources: str | PathLike[str] | tables.InMemory,
    weights: Weights = "averaged",
    columns: Mapping[str, str] | Sequence[str] = (),
    settings: str | PathLike[str] | tables.InMemory | None = None,
) -> RunSet:
    """Runs of tables (.csv, .tsv, .jsonl, .parquet, .pq), of data frames, lists of rows (dicts by column) and sweeps in the store (s3://, gs://, file://).

    Names that W&B, TensorBoard, MLflow, Trackio and trainers use for columns are known; `columns` says the others, such as
    `{"loss": "eval/loss", "tokens": "step*batch_size*sequence_length"}`, and `settings` is a table with one row for each run
    that has what the tables lack. `weights` chooses between the losses of averaged and raw weights of a sweep; a table has only one kind. Raises BadInput naming the source, and the row and column of
    a table, and TypeError for what is no source.

    >>> runs = isoloss.read_runs("runs.csv")
    >>> probes = isoloss.read_runs("history.csv", settings="settings.csv", columns={"loss": "eval/loss"})
    """
    given = [_source(source) for source in sources]
    names = [source for source in given if isinstance(source, str)]
    frames = [source for source in given if not isinstance(source, str)]
    naming = tables.naming_of(columns, None if settings is None else _source(settings))
    table = tables.read_tables(
        [*(name for name in names if tables.is_table(name)), *frames], naming
    )
    runs, warnings = list(table.runs), list(table.warnings)
    corpora: dict[str, str] = {}
    for source in names:
        if tables.is_table(source):
            continue
        if not is_sweep_uri(source):
            of_laws = "; laws go to isoloss predict" if source.endswith(".json") else ""
            raise BadInput(
                f"{source}: neither {tables.TABLES} nor the URI of a sweep in the store: save a table as CSV or Parquet{of_laws}"
            )
        sweep = open_sweep(source)
        corpora.setdefault(sweep.ledger.data_digest, source)
        if len(corpora) > 1:
            raise BadInput(f"{' and '.join(corpora.values())} were trained on different corpora")
        found = sweep_runs(sweep, weights)
        runs += found.runs
        warnings += found.warnings
    _check_names(runs)
    if not runs:
        raise BadInput(f"{', '.join(names)}: no runs")
    return RunSet(tuple(runs), tuple(warnings), table.read)


def _source(source: object) -> str | tables.InMemory:
    """A name, a data frame or a list of rows."""
    if isinstance(source, str | PathLike):
        return fspath(source)
    if tables.is_frame(source) or tables.is_listed(source):
        return source
    raise TypeError(
        "read_runs takes names of tables, URIs of sweeps, data frames and lists of rows (dicts by column), "
        f"not {type(source).__name__}{not_collected(source)}"
    )


def not_collected(source: object) -> str:
    """What to do with a query of polars or another library that has no rows yet; else nothing."""
    is_lazy = callable(getattr(source, "collect", None)) and not tables.is_frame(source)
    return ": it has no rows before .collect()" if is_lazy else ""


def _check_names(runs: Sequence[Run]) -> None:
    seen: set[str] = set()
    for run in runs:
        if run.name in seen:
            raise BadInput(f"run {run.name!r} is in two of the sources")
        seen.add(run.name)
