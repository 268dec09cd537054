"""`isoloss explain`: the whole story of one point of a sweep."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import Annotated

import typer

from isoloss.cli.outcome import ANSWERED, command, print_document
from isoloss.errors import BadInput


@command
def explain(
    sweep: Annotated[str, typer.Argument(help="URI of a sweep in the store.")],
    point: Annotated[str, typer.Argument(help="Name of a point, or the start of its key.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Tell what became of one point: attempts, reasons, cost, files, and whether the fit uses it."""
    # Not above: the help needs none of the store's records.
    from isoloss.progress.point_facts import find_point, read_point
    from isoloss.progress.point_story import document, story, story_text
    from isoloss.stored_sweeps import is_sweep_uri, open_sweep

    if not is_sweep_uri(sweep):
        raise BadInput(f"{sweep}: give the URI of a sweep in the store (s3://, gs:// or file://)")
    found = open_sweep(sweep)
    facts = read_point(found, find_point(found.ledger, point))
    if as_json:
        print_document(document(facts))
    else:
        typer.echo(story_text(story(facts), get_terminal_size().columns))
    return ANSWERED
