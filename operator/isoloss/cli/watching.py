"""`isoloss watch`: a running sweep or prediction, until it is ready or stalled."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoloss import formatting
from isoloss.cli.inputs import Namespace, sweep_in_store
from isoloss.cli.outcome import ANSWERED, REFUSED, console, print_document
from isoloss.errors import BadInput

if TYPE_CHECKING:  # each is imported where it is needed, so that the help needs none of them
    from rich.console import Group, RenderableType

    from isoloss.status import View

STALLED = REFUSED
DEFAULT_SECONDS = 5.0
MAX_LINES = 20
MAX_SIZES = 6
"""Of more sizes the last ones are shown, which train longest."""
BAR = 30
NARROWEST = 40


def watch(
    what: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP",
            help="scalingsweep/NAME or hyperparamprediction/NAME in a cluster, or the URI of a sweep in the store.",
        ),
    ],
    namespace: Namespace = "",
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    every: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds between two readings.")
    ] = DEFAULT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object of the moment and end.")
    ] = False,
) -> int:
    """Show the progress, laws, answer and cost of a running sweep until it is ready or stalled."""
    read = _reader(what, namespace)
    if as_json:
        print_document(_document(read()))
        return ANSWERED
    if once:
        _print(read())
        return ANSWERED
    return _ended(_follow(read, every))


Read = Callable[[], "View"]


def _reader(what: str, namespace: str) -> Read:
    from isoloss.kubectl import read_view
    from isoloss.page_status import read_page_status
    from isoloss.status import View

    if (sweep := sweep_in_store(what, namespace)) is None:
        return lambda: read_view(what, namespace)
    # By the status beside the page that the operator drew last.
    return lambda: View(read_page_status(sweep.store, sweep.folder))


def _document(view: View) -> dict[str, Any]:
    """For programs: both statuses, and what follows from them."""
    from isoloss.status import law_lines

    stalled = view.stalled
    return {
        "ready": view.is_ready,
        "stalled": stalled.get("message"),
        "stalled_reason": stalled.get("reason"),
        "laws": law_lines(view),
        "sweep": view.sweep.get("status"),
        "prediction": (view.prediction or {}).get("status"),
    }


# ------------------------------------------------------------------------------- what is shown


def screen(view: View, width: int) -> Group:
    """At most MAX_LINES lines of at most `width` columns: the state, the sizes, laws or answer, cost, and what is
    waited for, which is cut if it is long."""
    from rich.console import Group
    from rich.text import Text

    from isoloss.status import (
        answer_lines,
        cost_line,
        headline,
        law_lines,
        search_lines,
        size_lines,
        waited_for,
    )

    width = max(width, NARROWEST)
    sizes = size_lines(view)
    shown = sizes[-MAX_SIZES:]
    left_out = len(sizes) - len(shown)
    results = answer_lines(view) or law_lines(view)
    above = _folded([headline(view)], width, 3)
    if left_out:
        above.append(f"{formatting.counted(left_out, 'more size')} not shown")
    shown_below = (*results, *search_lines(view), cost_line(view))
    below = [_cut(line, width) for line in shown_below if line]
    room = MAX_LINES - len(above) - len(shown) - len(below)
    below += _folded(waited_for(view).splitlines(), width, room)
    parts: list[RenderableType] = [Text(line, no_wrap=True) for line in above]
    if shown:
        parts.append(_table(shown, width))
    return Group(*parts, *(Text(line, no_wrap=True) for line in below))


def _table(sizes: list[Any], width: int) -> RenderableType:
    """A line for each size, with a bar if there is room for one."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(width - BAR - 26, 12))
    table.add_column()
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    for size in sizes:
        best = f"best {size['loss']}" if size["loss"] else ""
        done = size["trained"]
        bar = ProgressBar(total=100, completed=done, width=min(BAR, max(width - 38, 4)))
        table.add_row(size["proxy"], bar, f"{done}%", size["progress"], best)
    return table


def _folded(lines: list[str], width: int, most: int) -> list[str]:
    """The lines folded between words, `most` of them; the last one says if there was more."""
    folded = [part for line in lines for part in formatting.wrapped(line, width)]
    if len(folded) <= most:
        return folded
    return [*folded[: most - 1], _cut(f"{folded[most - 1]} {folded[most]}", width)]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _print(view: View) -> None:
    terminal = console()
    terminal.print(screen(view, terminal.width))


# --------------------------------------------------------------------------------- following it


def _ended(last: View) -> int:
    """The exit code, and for whoever reads a log why it is not 0."""
    stalled = last.stalled
    if last.is_ready or not stalled:
        return ANSWERED
    typer.echo(f"stalled: {stalled.get('reason', '')}: {stalled.get('message', '')}", err=True)
    return STALLED


def _follow(read: Read, seconds: float) -> View:
    """Show one moment after the other until the last. The first must be readable; a later failure is shown and tried
    again.

    On a terminal in place, elsewhere as a line for each change.
    """
    first, terminal = read(), console()
    if not terminal.is_terminal:
        return _loop(read, first, seconds, _lines())
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=terminal, auto_refresh=False) as live:

        def show(now: View, problem: str) -> None:
            shown = screen(now, terminal.width)
            more = [Text(_cut(problem, terminal.width), no_wrap=True)] if problem else []
            live.update(Group(shown, *more), refresh=True)

        return _loop(read, first, seconds, show)


def _loop(read: Read, last: View, seconds: float, show: Callable[[View, str], None]) -> View:
    problem = ""
    while True:
        show(last, problem)
        if last.is_settled:
            return last
        time.sleep(seconds)
        try:
            last, problem = read(), ""
        except BadInput as error:
            problem = f"not read, shown as it was: {error}"


def _lines() -> Callable[[View, str], None]:
    """A printer of one line for each change."""
    from isoloss.status import headline

    before = ""

    def show(shown: View, problem: str) -> None:
        nonlocal before
        line = problem or headline(shown)
        if line != before:
            typer.echo(line)
        before = line

    return show
