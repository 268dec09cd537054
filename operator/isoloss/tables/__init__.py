"""Strict reading of run tables (CSV, JSON lines, Parquet, logs of trainers): a bad table must fail here, by row and column.

A column in the wrong unit fits as smoothly as a correct one and gives a wrong learning rate with a narrow
interval, so no cell is guessed and nothing is repaired. Exports of trackers are put under our names first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from isoloss.errors import BadInput
from isoloss.laws import Run
from isoloss.tables.cells import numbers_of
from isoloss.tables.copies import Place, refuse_copies
from isoloss.tables.expressions import parse_option
from isoloss.tables.formats import OPTIONAL as OPTIONAL
from isoloss.tables.formats import REQUIRED as REQUIRED
from isoloss.tables.formats import TABLES as TABLES
from isoloss.tables.formats import ArrowStream as ArrowStream
from isoloss.tables.formats import BadTable as BadTable
from isoloss.tables.formats import InMemory as InMemory
from isoloss.tables.formats import Table, bytes_of, read_cells, read_frame
from isoloss.tables.formats import is_frame as is_frame
from isoloss.tables.formats import is_listed as is_listed
from isoloss.tables.formats import is_table as is_table
from isoloss.tables.grouping import check_whole_table, rows_by_run, run_of
from isoloss.tables.naming import Naming as Naming
from isoloss.tables.naming import ReadAs as ReadAs
from isoloss.tables.naming import named, warnings_together
from isoloss.tables.naming import together as together
from isoloss.tables.units import check_units, large_rates_warning

AS_IT_IS = Naming()
"""Without options: our names, or those that tools are known to use."""


@dataclass(frozen=True)
class RunTable:
    """The runs of one or more tables in order of appearance, and warnings about what was ignored."""

    runs: tuple[Run, ...]
    first_rows: tuple[int, ...] = ()
    """First row of each run in its table, for messages."""
    warnings: tuple[str, ...] = ()
    read: tuple[ReadAs, ...] = ()
    """What was taken for what, by table."""


def naming_of(
    columns: Mapping[str, str] | Sequence[str] = (), settings: str | InMemory | None = None
) -> Naming:
    """What options say of columns: `{"loss": "eval/loss"}` or `["loss=eval/loss"]`, and a table of settings by run.

    Raises BadInput and BadTable.
    """
    texts = [columns] if isinstance(columns, str) else columns
    if isinstance(columns, Mapping):
        texts = [f"{k}={v}" for k, v in columns.items()]
    expressions = tuple(parse_option(text, (*REQUIRED, *OPTIONAL)) for text in texts)
    twice = [name for name, n in Counter(each.column for each in expressions).items() if n > 1]
    if twice:
        raise BadInput(f"--column {twice[0]}: given more than once")
    naming = Naming(expressions)
    if settings is None:
        return naming
    if not isinstance(settings, str):
        return replace(naming, settings=read_frame(settings, naming.in_use))
    if not is_table(settings):
        raise BadInput(f"--settings {settings}: not {TABLES}")
    return replace(naming, settings=read_cells(bytes_of(settings), settings, naming.in_use))


def read_tables(sources: Sequence[str | InMemory], naming: Naming = AS_IT_IS) -> RunTable:
    """All runs of several tables, by name or in memory. Raises BadTable, also for a run that is in two of them."""
    seen: dict[str, str] = {}
    runs: list[Run] = []
    places: list[Place] = []
    warnings: list[tuple[str, str]] = []
    read: list[ReadAs] = []
    for source in sources:
        if isinstance(source, str):
            name, table = source, read_table(source, naming)
        else:
            cells = read_frame(source, naming.in_use)
            name, table = cells.source, _runs_of(cells, naming)
        for run, row in zip(table.runs, table.first_rows, strict=True):
            if run.name in seen:
                message = (
                    f"run {run.name!r} is also in {seen[run.name]}: give a run once, or rename one"
                )
                raise BadTable(name, message, row=row, column="run")
            seen[run.name] = name
            places.append((name, row))
        runs += table.runs
        warnings += [(name, warning) for warning in table.warnings]
        read += table.read
    if len(sources) > 1:
        refuse_copies(runs, places)
    rows = tuple(row for _, row in places)
    return RunTable(tuple(runs), rows, tuple(warnings_together(warnings)), tuple(read))


def read_table(source: str, naming: Naming = AS_IT_IS) -> RunTable:
    """The runs of a CSV, JSON lines, Parquet file or trainer_state.json at a path or store URI. Raises BadTable."""
    return parse_table(bytes_of(source), source, naming)


def parse_table(content: bytes, source: str, naming: Naming = AS_IT_IS) -> RunTable:
    """The runs of a table's bytes; the ending of `source` gives the format. Raises BadTable."""
    return _runs_of(read_cells(content, source, naming.in_use), naming)


def _runs_of(cells: Table, naming: Naming) -> RunTable:
    ours, read, warnings = named(cells, naming)
    try:
        table = _checked(ours)
    except BadTable as error:
        theirs = read.columns.get(error.column or "", error.column)
        if theirs == error.column:
            raise
        message = f"{error.message} ({error.column} is {theirs})"
        raise BadTable(error.source, message, row=error.row, column=error.column) from error
    every = (*warnings, *table.warnings)
    return replace(table, warnings=every, read=(read,) if read.columns else ())


def _checked(table: Table) -> RunTable:
    """The runs of a table under our names."""
    numbers = numbers_of(table)
    check_units(numbers)
    rows_of = rows_by_run(numbers)
    check_whole_table(numbers, rows_of)
    runs = tuple(run_of(numbers, name, rows) for name, rows in rows_of.items())
    first_rows = tuple(numbers.table.rows[min(rows)] for rows in rows_of.values())
    refuse_copies(runs, [(table.source, row) for row in first_rows])
    percent = large_rates_warning(runs, table.source)
    return RunTable(runs, first_rows, (*numbers.warnings, *filter(None, [percent])))
