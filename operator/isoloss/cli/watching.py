"""`isoloss watch`: a running sweep or prediction, until it is ready or stalled."""

from __future__ import annotations

import time
from collections.abc import Callable
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from isoloss.cli.outcome import ANSWERED, REFUSED, command, console, print_document
from isoloss.errors import BadInput

if TYPE_CHECKING:  # each is imported where it is needed, so that the help needs none of them
    from isoloss.progress.frames import Frame
    from isoloss.progress.resources import View
    from isoloss.progress.sweep_state import SweepState

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
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Of the resource in a cluster.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Show a single picture and end.")] = False,
    every: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds between two readings.")
    ] = DEFAULT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object of the moment and end.")
    ] = False,
) -> int:
    """Show progress, losses, laws and cost of a running sweep until it is ready or stalled."""
    source = _source(what, namespace)
    if as_json:
        print_document(_document(source))
        return ANSWERED
    if once:
        typer.echo(_frame(source, _width()).text)
        return ANSWERED
    return _code(_follow(lambda width: _frame(source, width), every))


class _Source(Protocol):
    """Where a sweep, or a prediction with its sweep, is read."""

    def read(self) -> tuple[View, SweepState | None, str]:
        """The resources, the points where the store can be read from here, and why it cannot."""


class _StoredSource:
    """A sweep in the store."""

    def __init__(self, uri: str) -> None:
        from isoloss.progress.sweep_reading import StoredSweepReader

        self._reader = StoredSweepReader(uri)

    def read(self) -> tuple[View, SweepState | None, str]:
        """See _Source."""
        from isoloss.progress.resources import View

        resource, state = self._reader.read()
        return View(resource), state, ""


class _ClusterSource:
    """A sweep or a prediction in a cluster, with what the store has where it can be read from here."""

    def __init__(self, what: str, namespace: str) -> None:
        from isoloss.progress.resource_reading import Kubectl, resource_name

        self._resource = resource_name(what, namespace)
        self._kubectl = Kubectl()

    def read(self) -> tuple[View, SweepState | None, str]:
        """See _Source."""
        from isoloss.progress.resource_reading import read_view
        from isoloss.progress.resources import ledger_folder
        from isoloss.progress.sweep_reading import StoredSweepReader

        view = read_view(self._kubectl, self._resource)
        state, without = None, ""
        if uri := ledger_folder(view):
            try:
                _, state = StoredSweepReader(uri).read()
            except BadInput as error:
                without = str(error)
        return view, state, without


def _frame(source: _Source, width: int) -> Frame:
    from isoloss.progress.frames import frame

    return frame(*source.read(), width)


def _document(source: _Source) -> dict[str, Any]:
    """The moment for programs: both statuses, and the points where the store can be read from here."""
    from isoloss.progress.picture import document

    view, state, _ = source.read()
    return {
        "ready": view.is_ready,
        "stalled": view.stalled.get("message"),
        "sweep": view.sweep.get("status"),
        "prediction": (view.prediction or {}).get("status"),
        **(document(state) if state is not None else {}),
    }


def _source(what: str, namespace: str) -> _Source:
    from isoloss.stored_sweeps import is_sweep_uri

    if not is_sweep_uri(what):
        return _ClusterSource(what, namespace)
    if namespace:
        raise BadInput(f"--namespace: {what} is a URI in the store, which has none")
    return _StoredSource(what)


def _width() -> int:
    return get_terminal_size().columns


def _code(last: Frame) -> int:
    return STALLED if last.stalled and not last.is_ready else ANSWERED


def _follow(frame: Callable[[int], Frame], seconds: float) -> Frame:
    """Show frames until the last. The first must be readable; a later failure is shown and tried again."""
    first = frame(_width())
    terminal = console()
    if not terminal.is_terminal:
        return _loop(frame, first, seconds, _lines())
    from rich.live import Live
    from rich.text import Text

    with Live(console=terminal, auto_refresh=False, vertical_overflow="visible") as live:

        def show(shown: Frame, problem: str) -> None:
            text = f"{shown.text}\n{problem}" if problem else shown.text
            live.update(Text(text, no_wrap=True), refresh=True)

        return _loop(frame, first, seconds, show)


def _loop(
    frame: Callable[[int], Frame],
    last: Frame,
    seconds: float,
    show: Callable[[Frame, str], None],
) -> Frame:
    problem = ""
    while True:
        show(last, problem)
        if last.is_last:
            return last
        time.sleep(seconds)
        try:
            last, problem = frame(_width()), ""
        except BadInput as error:
            problem = f"not read, shown as it was: {error}"


def _lines() -> Callable[[Frame, str], None]:
    """A printer of one line for each change."""
    before = ""

    def show(shown: Frame, problem: str) -> None:
        nonlocal before
        line = problem or shown.line
        if line != before:
            typer.echo(line)
        before = line

    return show
