"""Strict reading of run tables (CSV, Parquet): a bad table must fail here, by row and column.

A column in the wrong unit fits as smoothly as a correct one and gives a wrong learning rate with a narrow
interval, so no cell is guessed and nothing is repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from isoloss.laws import Run
from isoloss.tables.cells import numbers_of
from isoloss.tables.copies import find_copy
from isoloss.tables.formats import (
    FRAME,
    OPTIONAL,
    REQUIRED,
    ArrowStream,
    BadTable,
    Table,
    bytes_of,
    is_frame,
    is_parquet,
    is_table,
    read_csv,
    read_frame,
    read_parquet,
)
from isoloss.tables.grouping import check_whole_table, rows_by_run, run_of
from isoloss.tables.units import check_units, large_rates_warning

__all__ = [
    "OPTIONAL",
    "REQUIRED",
    "ArrowStream",
    "BadTable",
    "RunTable",
    "is_frame",
    "is_table",
    "parse_table",
    "read_table",
    "read_tables",
]


Place: TypeAlias = tuple[str, int]
"""The table of a run, and its first row there."""


@dataclass(frozen=True)
class RunTable:
    """The runs of one or more tables in order of appearance, and warnings about what was ignored."""

    runs: tuple[Run, ...]
    first_rows: tuple[int, ...] = ()
    """First row of each run in its table, for messages."""
    warnings: tuple[str, ...] = ()


def read_tables(sources: Sequence[str | ArrowStream]) -> RunTable:
    """All runs of several tables, by name or in memory. Raises BadTable, also for a run that is in two of them."""
    seen: dict[str, str] = {}
    runs: list[Run] = []
    places: list[Place] = []
    warnings: list[str] = []
    for source in sources:
        name = source if isinstance(source, str) else FRAME
        table = read_table(source) if isinstance(source, str) else _runs_of(read_frame(source))
        for run, row in zip(table.runs, table.first_rows, strict=True):
            if run.name in seen:
                message = f"run {run.name!r} is also in {seen[run.name]}"
                raise BadTable(name, message, row=row, column="run")
            seen[run.name] = name
            places.append((name, row))
        runs += table.runs
        warnings += table.warnings
    if len(sources) > 1:
        _refuse_copies(runs, places)
    return RunTable(tuple(runs), tuple(row for _, row in places), tuple(warnings))


def _refuse_copies(runs: Sequence[Run], places: Sequence[Place]) -> None:
    """Raise BadTable for a run under two names."""
    copy = find_copy(runs)
    if copy is None:
        return
    (source, row), (other, _) = places[copy.index], places[copy.original_index]
    message = copy.message + (f" (it is in {other})" if other != source else "")
    raise BadTable(source, message, row=row, column="run")


def read_table(source: str) -> RunTable:
    """The runs of a CSV (.csv, .csv.gz) or Parquet file at a path or store URI. Raises BadTable."""
    return parse_table(bytes_of(source), source)


def parse_table(content: bytes, source: str) -> RunTable:
    """The runs of a table's bytes; the ending of `source` gives the format. Raises BadTable."""
    return _runs_of(
        read_parquet(content, source) if is_parquet(source) else read_csv(content, source)
    )


def _runs_of(table: Table) -> RunTable:
    numbers = numbers_of(table)
    check_units(numbers)
    rows_of = rows_by_run(numbers)
    check_whole_table(numbers, rows_of)
    runs = tuple(run_of(numbers, name, rows) for name, rows in rows_of.items())
    first_rows = tuple(numbers.table.rows[min(rows)] for rows in rows_of.values())
    _refuse_copies(runs, [(table.source, row) for row in first_rows])
    percent = large_rates_warning(runs, table.source)
    warnings = (*numbers.warnings, *([percent] if percent else []))
    return RunTable(runs, first_rows, warnings)
