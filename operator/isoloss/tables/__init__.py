"""Strict reading of run tables (CSV, Parquet): a wrong table must fail here, by row and column.

A column in the wrong unit fits as smoothly as a right one and gives a wrong learning rate with a narrow
interval, so no cell is guessed and nothing is mended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isoloss.laws import Run
from isoloss.tables.cells import numbers_of
from isoloss.tables.formats import (
    OPTIONAL,
    REQUIRED,
    BadTable,
    bytes_of,
    is_parquet,
    is_table,
    read_csv,
    read_parquet,
)
from isoloss.tables.grouping import check_copies, check_whole_table, rows_by_run, run_of
from isoloss.tables.units import check_units

__all__ = [
    "OPTIONAL",
    "REQUIRED",
    "BadTable",
    "RunTable",
    "is_table",
    "parse_table",
    "read_table",
    "read_tables",
]


@dataclass(frozen=True)
class RunTable:
    """The runs of one or more tables, in order of appearance, and what was ignored."""

    runs: tuple[Run, ...]
    first_rows: tuple[int, ...] = ()
    """Of each run, in its table: for messages."""
    warnings: tuple[str, ...] = ()


def read_tables(sources: Sequence[str]) -> RunTable:
    """All runs of several tables. A run may be in one of them only. Raises BadTable."""
    seen: dict[str, str] = {}
    runs: list[Run] = []
    rows: list[int] = []
    warnings: list[str] = []
    for source in sources:
        table = read_table(source)
        for run, row in zip(table.runs, table.first_rows, strict=True):
            if run.name in seen:
                message = f"run {run.name!r} is in {seen[run.name]} too"
                raise BadTable(source, message, row=row, column="run")
            seen[run.name] = source
        runs += table.runs
        rows += table.first_rows
        warnings += table.warnings
    return RunTable(tuple(runs), tuple(rows), tuple(warnings))


def read_table(source: str) -> RunTable:
    """The runs of one CSV (also .csv.gz) or Parquet file: a path or a URI of the store. Raises BadTable."""
    return parse_table(bytes_of(source), source)


def parse_table(content: bytes, source: str) -> RunTable:
    """The runs of a table's bytes; `source` names it, and its ending tells the format. Raises BadTable."""
    table = read_parquet(content, source) if is_parquet(source) else read_csv(content, source)
    numbers = numbers_of(table)
    check_units(numbers)
    rows_of = rows_by_run(numbers)
    check_whole_table(numbers, rows_of)
    runs = tuple(run_of(numbers, name, rows) for name, rows in rows_of.items())
    check_copies(numbers, rows_of, runs)
    first_rows = tuple(numbers.table.rows[min(rows)] for rows in rows_of.values())
    return RunTable(runs, first_rows, tuple(numbers.warnings))
