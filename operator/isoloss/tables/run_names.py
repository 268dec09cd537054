"""Which run each row of an export belongs to."""

from collections.abc import Iterable, Sequence
from typing import Any

from isoloss.errors import BadInput
from isoloss.tables import known_names
from isoloss.tables.cell_values import is_blank, is_number, text_of
from isoloss.tables.exports import is_called_alike, run_of_file
from isoloss.tables.expressions import Expression, missing_name, near, option
from isoloss.tables.formats import OPTIONAL, REQUIRED, BadTable, Table


def run_columns(header: Iterable[str]) -> list[str]:
    """Columns with names of runs, the best first."""
    names = list(header)
    return [name for name in known_names.RUN if name in names]


def runs_of_rows(table: Table, given: Expression | None) -> tuple[str, list[str]]:
    """Where the names of runs are from, and that of each row; `given` is `--column run=...`. Raises BadTable."""
    columns = run_columns(table.columns)
    if given is not None:
        if not given.is_name(table.columns):
            raise BadInput(f"{given.option}: run takes the name of one column")
        columns = [*given.names(table.columns)]
        if columns[0] not in table.columns:
            message = missing_name(given, columns[0], list(table.columns))
            raise BadTable(table.source, message, row=1)
    for column in columns:
        if not all(map(is_blank, table.columns[column])):
            runs = [text_of(cell) for cell in table.columns[column]]
            if given is None:
                _refuse_shared_name(table, column, runs)
            return column, runs
    return _one_run(table)


def _refuse_shared_name(table: Table, column: str, runs: Sequence[str]) -> None:
    """Raise BadTable where one name is that of several IDs, as W&B and MLflow allow."""
    for ids in known_names.RUN_IDS:
        first: dict[str, str] = {}
        for index, (run, cell) in enumerate(zip(runs, table.columns.get(ids, ()), strict=False)):
            known = cell if is_blank(cell) else first.setdefault(run, text_of(cell))
            if not is_blank(cell) and known != text_of(cell):
                raise table.bad(
                    index,
                    "run",
                    f"the name {run!r} is that of two IDs, {known!r} and {text_of(cell)!r}: say which tells runs apart, "
                    f"{option('run', ids)}, or {option('run', column)} if one run was resumed",
                )


def _one_run(table: Table) -> tuple[str, list[str]]:
    """The name of the file, for the history of one run. Raises BadTable for a table of several."""
    name = run_of_file(table.source)
    header = [column for column in table.columns if column]
    steps = [
        column
        for column in header
        for tier in known_names.TIERS["step"]
        if any(known_names.is_of(column, known, tier.kind) for known in tier.names)
    ]
    texts = [
        column
        for column in header
        if column not in (*REQUIRED, *OPTIONAL) and _tells_rows_apart(table.columns[column])
    ]
    if name is None or not steps or texts:
        hint = near("run", texts or header)
        which = f"; name it, as in {option('run', texts[0])}" if texts else ""
        message = f"missing; found {table.found()}{which or hint}"
        raise BadTable(table.source, message, row=1, column="run")
    return f"the {'folder' if is_called_alike(table.source) else 'file'}'s name", [name] * len(
        table.rows
    )


def _tells_rows_apart(cells: Sequence[Any]) -> bool:
    """Whether a column has several words, one in each row, as names of runs are."""
    words = {text_of(cell) for cell in cells}
    return len(words) > 1 and not any(is_blank(word) or is_number(word) for word in words)
