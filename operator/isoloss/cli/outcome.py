"""What a command prints, and the exit code it ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from isoloss import formatting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from isoloss.laws import Refusal, Refused
    from isoloss.tables import ReadAs

ANSWERED, BAD_INPUT, REFUSED = 0, 2, 3
PIPED_WIDTH = 80
"""Columns at which sentences fold in a pipe, if a command folds them there."""


def console(piped_width: int | None = None) -> Console:
    """A terminal to print tables on. Markup and emoji codes are off, because names come from files.

    In a pipe sentences fold at `piped_width`; None: they stay whole.
    """
    # Here and below, not above: only tables need rich, which takes a tenth of a second to import.
    from rich.console import Console

    class Folding(Console):
        """Breaks sentences between words, and never a path."""

        def print(self, *objects: Any, **options: Any) -> None:
            width = self.width if self.is_terminal else piped_width
            if width is not None:
                objects = tuple(folded(x, width) if isinstance(x, str) else x for x in objects)
            super().print(*objects, **options)

    return Folding(markup=False, highlight=False, emoji=False, soft_wrap=True)


def folded(text: str, width: int) -> str:
    """Each line in lines of at most `width` characters; a longer word stays whole."""
    lines = (
        formatting.wrapped(line, width) if len(line) > width else [line]
        for line in text.split("\n")
    )
    return "\n".join(part for line in lines for part in line)


def print_document(document: Mapping[str, Any]) -> None:
    """Print the one JSON object of a command: dataclasses by their fields, null for what is not finite."""
    # Not above: the help, and tables, need none of it.
    from pydantic_core import to_json

    text = to_json(document, indent=2, inf_nan_mode="null", fallback=lambda value: value.tolist())
    typer.echo(text.decode())


def print_warnings(warnings: Sequence[str]) -> None:
    """Print a command's warnings on standard error."""
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


def print_refused(refused: Refused, *, as_json: bool, read: Sequence[ReadAs] = ()) -> int:
    """Print why there is no answer, with how tables were read in JSON. Returns the exit code."""
    if as_json:
        taken = {"read": read} if read else {}
        print_document({"refused": refused.refusals, "warnings": refused.warnings, **taken})
    else:
        print_warnings(refused.warnings)
        print_refusals(refused.refusals)
    return REFUSED


def print_refusals(refusals: Sequence[Refusal]) -> None:
    """Print each reason, with its sentence."""
    for refusal in refusals:
        console().print(f"refused: {refusal.reason.value}: {refusal.message}")


def print_error(error: Mapping[str, Any], text: str, *, as_json: bool) -> int:
    """Print an error: `text` for people, `error` as JSON for programs. Returns the exit code."""
    if as_json:
        print_document({"error": error})
    if text:
        typer.echo(f"isoloss: {text}", err=True)
    return BAD_INPUT


def grid(*heads: str) -> Table:
    """A plain table without lines."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    return table
