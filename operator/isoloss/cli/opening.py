"""`isoloss open`: the report page of a sweep or a prediction, in a browser."""

import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from isoloss.cli.inputs import AsJson, Namespace, sweep_in_store
from isoloss.cli.outcome import ANSWERED, print_document
from isoloss.errors import BadInput

MAX_PAGE_BYTES = 64 * 2**20


def open_page(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="scalingsweep/NAME or hyperparamprediction/NAME in a cluster, or the URI of a sweep in the store.",
        ),
    ],
    namespace: Namespace = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Write the page to this file. By default one in a temporary folder."),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page, or only fetch it.")
    ] = True,
    as_json: AsJson = False,
) -> int:
    """Fetch the report page that the operator wrote, and open it in a browser."""
    uri = _page_uri(what, namespace)
    page = out or Path(tempfile.mkdtemp(prefix="isoloss-")) / f"{_title(what)}.html"
    _save(_read(uri), page)
    opened = browser and not as_json and webbrowser.open(page.resolve().as_uri())
    if as_json:
        print_document({"uri": uri, "page": str(page)})
    else:
        typer.echo(str(page))
        if browser and not opened:
            typer.echo("no browser could be started here: open the file above in one", err=True)
    return ANSWERED


def _title(what: str) -> str:
    return what.rstrip("/").rpartition("/")[2] or "report"


def _page_uri(what: str, namespace: str) -> str:
    """Where the operator wrote the page. Raises BadInput if there is none yet."""
    from isoloss.kubectl import read_view
    from isoloss_contract import layout

    if sweep := sweep_in_store(what, namespace):
        return sweep.store.location(layout.report_in(sweep.folder))
    view = read_view(what, namespace)
    for resource in (view.prediction, view.sweep):
        if uri := ((resource or {}).get("status") or {}).get("reportUri"):
            return str(uri)
    raise BadInput(
        f"{what}: status.reportUri is empty: the operator has written no page yet. "
        f"isoloss watch {what} shows how far it is"
    )


def _read(uri: str) -> bytes:
    from isoloss_contract.store import NotFound, Store

    folder, _, name = uri.rpartition("/")
    try:
        return Store(folder).read(name, max_bytes=MAX_PAGE_BYTES)
    except NotFound as error:
        raise BadInput(
            f"{uri}: no page there yet: isoloss report draws one from the laws"
        ) from error


def _save(content: bytes, page: Path) -> None:
    """Write what the store had, under a policy that lets no script in it run and nothing be fetched."""
    from isoloss.laws_files import write_file
    from isoloss.report.content import PAGE_POLICY

    meta = f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">\n'
    write_file(page, meta.encode() + content)
