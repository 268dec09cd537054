"""How a command ends: what it prints and with which exit code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from isoloss.cli import documents
from isoloss.laws import BadLaws, InvalidRunError
from isoloss.published import UnknownLaw
from isoloss.stored_sweeps import BadSweep
from isoloss.tables import BadTable
from isoloss_contract.store import BadStoreUri, StoreError

ANSWERED, BAD_INPUT, REFUSED = 0, 2, 3

Parameters = ParamSpec("Parameters")


class BadInput(Exception):
    """The command line or a file says something that can not be; nothing was computed."""


INPUT_ERRORS = (
    BadInput,
    BadTable,
    BadSweep,
    BadLaws,
    BadStoreUri,
    InvalidRunError,
    StoreError,
    UnknownLaw,
)


def console(*, stderr: bool = False) -> Console:
    """A terminal to print on. Names come from files: no markup and no emoji codes are read in them."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)


def print_document(document: Mapping[str, Any]) -> None:
    """The one JSON object of a command."""
    typer.echo(documents.dumps(document))


def print_warnings(warnings: list[str]) -> None:
    """Warnings of a command for people, on standard error."""
    for warning in warnings:
        console(stderr=True).print(f"warning: {warning}")


def grid(*heads: str) -> Table:
    """A plain table without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def command(body: Callable[Parameters, int]) -> Callable[Parameters, None]:
    """A command whose result is its exit code, and whose bad input is a message and exit code 2."""

    @functools.wraps(body)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            code = body(*args, **kwargs)
        except INPUT_ERRORS as error:
            if kwargs.get("as_json"):
                print_document({"error": _described(error)})
            console(stderr=True).print(f"isoloss: {error}")
            code = BAD_INPUT
        raise typer.Exit(code)

    return run


def _described(error: Exception) -> dict[str, Any]:
    if isinstance(error, BadTable):
        place = {"source": error.source, "row": error.row, "column": error.column}
        return {"message": error.message, **place}
    if isinstance(error, InvalidRunError):
        return {"message": str(error), "run": error.run, "column": error.field}
    return {"message": str(error)}
