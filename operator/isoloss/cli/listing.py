"""`isoloss laws`: the published laws, with formulas, units and sources."""

from typing import Any

import typer

from isoloss.cli.inputs import AsJson
from isoloss.cli.outcome import ANSWERED, print_document
from isoloss.published import PREFIX, PUBLISHED, PublishedLaw


def laws(
    as_json: AsJson = False,
) -> int:
    """List the published laws: formulas, units, sources and caveats."""
    if as_json:
        print_document({"laws": [_document(law) for law in PUBLISHED.values()]})
        return ANSWERED
    for law in PUBLISHED.values():
        typer.echo(f"{PREFIX}{law.name}  {law.title}")
        typer.echo(f"    {law.learning_rate_formula};  {law.batch_size_formula}")
        typer.echo(f"    units: {law.units}")
        typer.echo(f"    source: {law.source}")
        for caveat in law.caveats:
            typer.echo(f"    note: {caveat}")
        typer.echo("")
    typer.echo("None was published with a covariance: predictions from them have no intervals.")
    return ANSWERED


def _document(law: PublishedLaw) -> dict[str, Any]:
    return {
        "name": f"{PREFIX}{law.name}",
        "title": law.title,
        "learning_rate": law.learning_rate_formula,
        "batch_size": law.batch_size_formula,
        "units": law.units,
        "sequence_length": law.sequence_length,
        "needs_params": law.needs_params,
        "source": law.source,
        "caveats": list(law.caveats),
    }
