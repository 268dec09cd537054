"""`isoloss explain`: the whole story of one point of a sweep."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import Annotated

import typer

from isoloss.cli.inputs import AsJson, Namespace
from isoloss.cli.outcome import ANSWERED, command, print_document


@command
def explain(
    sweep: Annotated[
        str,
        typer.Argument(help="URI of a sweep in the store, or scalingsweep/NAME in a cluster."),
    ],
    point: Annotated[str, typer.Argument(help="Name of a point, or the start of its key.")],
    namespace: Namespace = "",
    as_json: AsJson = False,
) -> int:
    """Explain what happened to one point: attempts, reasons, cost, files, and whether the fit uses it."""
    # Not above: the help needs none of the store's records.
    from isoloss.progress.point_facts import find_point, read_point
    from isoloss.progress.point_story import document, story, story_text
    from isoloss.progress.resource_reading import stored_sweep_uri
    from isoloss.stored_sweeps import open_sweep

    found = open_sweep(stored_sweep_uri(sweep, namespace))
    facts = read_point(found, find_point(found.ledger, point))
    if as_json:
        print_document(document(facts))
    else:
        typer.echo(story_text(story(facts), get_terminal_size().columns))
    return ANSWERED
