"""`isoloss watch`: a running sweep or prediction, until it is ready or stalled."""

from __future__ import annotations

import time
from collections.abc import Callable
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from isoloss.cli.inputs import Namespace
from isoloss.cli.outcome import ANSWERED, REFUSED, command, console, print_document
from isoloss.errors import BadInput

if TYPE_CHECKING:  # each is imported where it is needed, so that the help needs none of them
    from isoloss.progress.moment import Moment

STALLED = REFUSED
DEFAULT_SECONDS = 5.0


@command
def watch(
    what: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP",
            help="URI of a sweep in the store, or scalingsweep/NAME or hyperparamprediction/NAME in a cluster.",
        ),
    ],
    namespace: Namespace = "",
    once: Annotated[bool, typer.Option("--once", help="Show a single picture and end.")] = False,
    every: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds between two readings.")
    ] = DEFAULT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object of the moment and end.")
    ] = False,
) -> int:
    """Show progress, losses, laws and cost of a running sweep until it is ready or stalled."""
    read = _reader(what, namespace)
    if as_json:
        print_document(read().document())
        return ANSWERED
    if once:
        from isoloss.progress.moment import frame

        typer.echo(frame(read(), get_terminal_size().columns))
        return ANSWERED
    return _ended(_follow(read, every))


Read = Callable[[], "Moment"]


def _in_a_cluster(what: str, namespace: str) -> Read:
    """With what the store has if it can be read from here."""
    from isoloss.progress.moment import Moment
    from isoloss.progress.resource_reading import read_view, resource_name
    from isoloss.progress.resources import ledger_folder
    from isoloss.progress.sweep_reading import StoredSweepReader

    resource = resource_name(what, namespace)

    def read() -> Moment:
        view = read_view(resource)
        state, without = None, ""
        if uri := ledger_folder(view):
            try:
                state = StoredSweepReader(uri).read().state
            except BadInput as error:
                without = str(error)
        return Moment(view, state, without)

    return read


def _reader(what: str, namespace: str) -> Read:
    from isoloss.progress.resource_reading import stored_sweep_uri
    from isoloss.progress.sweep_reading import StoredSweepReader
    from isoloss.stored_sweeps import is_sweep_uri

    if not is_sweep_uri(what):
        return _in_a_cluster(what, namespace)
    return StoredSweepReader(stored_sweep_uri(what, namespace)).read


def _ended(last: Moment) -> int:
    """The exit code, and for whoever reads a log why it is not 0."""
    stalled = last.view.stalled
    if last.view.is_ready or not stalled:
        return ANSWERED
    typer.echo(f"stalled: {stalled.get('reason', '')}: {stalled.get('message', '')}", err=True)
    return STALLED


def _follow(read: Read, seconds: float) -> Moment:
    """Show one moment after the other until the last. The first must be readable; a later failure is shown and tried
    again.

    A terminal shows them on its alternate screen, and keeps the last one when the watching ends.
    """
    terminal = console()
    if not terminal.is_terminal:
        return _loop(read, read(), seconds, _lines())
    from rich.live import Live
    from rich.text import Text

    from isoloss.progress.moment import frame

    shown = read()

    def drawn() -> str:
        return frame(shown, terminal.size.width, terminal.size.height)

    try:
        with Live(console=terminal, screen=True, auto_refresh=False) as live:

            def show(now: Moment, problem: str) -> None:
                nonlocal shown
                shown = now
                lines = drawn().splitlines()
                # The last line is what is waited for, which a failed reading cannot tell.
                told = [*lines[: terminal.size.height - 1], problem] if problem else lines
                live.update(Text("\n".join(told), no_wrap=True), refresh=True)

            return _loop(read, shown, seconds, show)
    finally:
        typer.echo(drawn())


def _loop(read: Read, last: Moment, seconds: float, show: Callable[[Moment, str], None]) -> Moment:
    problem = ""
    while True:
        show(last, problem)
        if last.view.is_settled:
            return last
        time.sleep(seconds)
        try:
            last, problem = read(), ""
        except BadInput as error:
            problem = f"not read, shown as it was: {error}"


def _lines() -> Callable[[Moment, str], None]:
    """A printer of one line for each change."""
    from isoloss.progress.resources import headline

    before = ""

    def show(shown: Moment, problem: str) -> None:
        nonlocal before
        line = problem or headline(shown.view)
        if line != before:
            typer.echo(line)
        before = line

    return show
