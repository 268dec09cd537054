"""`isoloss laws`: the published laws, with formulas, units and sources."""

from __future__ import annotations

from typing import Annotated

import typer

from isoloss.cli import documents
from isoloss.cli.outcome import ANSWERED, command, console, print_document
from isoloss.published import PREFIX, PUBLISHED


@command
def laws(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """List the published laws known by name."""
    if as_json:
        print_document(documents.published_laws(tuple(PUBLISHED.values())))
        return ANSWERED
    terminal = console()
    for law in PUBLISHED.values():
        terminal.print(f"{PREFIX}{law.name}  {law.title}")
        terminal.print(f"    {law.learning_rate_formula};  {law.batch_size_formula}")
        terminal.print(f"    units: {law.units}")
        terminal.print(f"    source: {law.source}")
        for caveat in law.caveats:
            terminal.print(f"    note: {caveat}")
        terminal.print()
    terminal.print(
        "None was published with a covariance: predictions from them have no intervals."
    )
    return ANSWERED
