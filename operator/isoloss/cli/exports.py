"""Options of the commands that read tables, and what they print of how a table was read."""

from collections.abc import Sequence
from typing import Annotated

import typer

from isoloss.cli.inputs import refuse_idle
from isoloss.cli.outcome import console
from isoloss.tables import ReadAs, is_table, together

Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=EXPRESSION",
        help="Where a column of tables comes from: loss=eval/loss, params=124e6, "
        '"tokens=step*batch_size*sequence_length". May be given more than once.',
    ),
]
Settings = Annotated[
    str | None,
    typer.Option(
        metavar="TABLE",
        help="A table with one row for each run, such as W&B's runs table, for settings that RUNS lack.",
    ),
]


def refuse_idle_of_tables(
    runs: Sequence[str], column: list[str] | None, settings: str | None
) -> None:
    """Raise BadInput for an option about tables where none is read."""
    if not any(map(is_table, runs)):
        refuse_idle(
            {"column": (column, None), "settings": (settings, None)},
            "no table is read: leave it out",
        )


def print_read(read: Sequence[ReadAs]) -> None:
    """What was taken for what: one line for each table, and one for many tables that are alike."""
    terminal = console()
    alike: dict[tuple[tuple[str, str], ...], list[ReadAs]] = {}
    for each in read:
        alike.setdefault(tuple(each.columns.items()), []).append(each)
    for tables in alike.values():
        terminal.print(together(tables).in_words())
    if read:
        terminal.print()
