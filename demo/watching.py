"""Watches the sweep and the prediction, and shows their progress.

On a terminal as a live table, elsewhere as a line for each change.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo import places
from demo.kubectl import Kubectl
from isoloss.progress.resources import View, active_points, headline

POLL_SECONDS = 2.0
LINE_SECONDS = 10.0
WIDTH = 76
"""Of a line without its indent."""
STILL_SECONDS = 600.0
"""Without any change for this long, something is wrong that no condition reports."""


class DemoFailed(RuntimeError):
    """The demo cannot finish; the message says why."""


def read_view(kubectl: Kubectl) -> View:
    """Both resources now."""
    return View(
        kubectl.get("scalingsweep", places.SWEEP, places.NAMESPACE),
        kubectl.get("hyperparamprediction", places.PREDICTION, places.NAMESPACE),
    )


def watch(kubectl: Kubectl, check: Callable[[], None]) -> View:
    """Show progress until the prediction is ready and its answer is judged. `check` raises if a process has ended.

    Raises DemoFailed if a resource stalls or nothing changes for STILL_SECONDS.
    """
    console = Console()
    if not console.is_terminal:
        return _follow(kubectl, check, _print_lines())
    with Live(console=console, auto_refresh=False, transient=True) as live:
        return _follow(kubectl, check, lambda view: live.update(_picture(view), refresh=True))


def _follow(kubectl: Kubectl, check: Callable[[], None], show: Callable[[View], None]) -> View:
    moved, last = time.monotonic(), None
    while True:
        check()
        view = read_view(kubectl)
        show(view)
        if view.is_ready:
            return view
        if stalled := view.stalled:
            raise DemoFailed(f"{stalled['reason']}: {stalled['message']}")
        # What changes as long as there is progress.
        statuses = [(each or {}).get("status") for each in (view.sweep, view.prediction)]
        if statuses != last:
            moved, last = time.monotonic(), statuses
        if time.monotonic() - moved > STILL_SECONDS:
            raise DemoFailed(f"nothing has changed for {STILL_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


# ------------------------------------------------------------------------------------ in words


def _print_lines() -> Callable[[View], None]:
    """A printer of changes, at most one line every LINE_SECONDS."""
    due, last = 0.0, ""

    def show(view: View) -> None:
        nonlocal due, last
        # Without the probes' losses it fits into 80 columns.
        line = re.sub(r" \([\d. ]+\)", "", headline(view))
        line = line if len(line) <= WIDTH else line.rpartition(", ")[0]
        # A change of the time left alone is not printed.
        news = line.partition(", about")[0]
        if news != last and (time.monotonic() >= due or view.is_ready):
            due, last = time.monotonic() + LINE_SECONDS, news
            sys.stdout.write(f"    {line}\n")
            sys.stdout.flush()

    return show


def _picture(view: View) -> RenderableType:
    points = view.sweep.get("status", {}).get("points", {})
    done = sum(points.get(state, 0) for state in ("succeeded", "diverged"))
    table = Table(box=None, padding=(0, 2, 0, 4), show_header=bool(active_points(view)))
    table.add_column("training now", style="cyan")
    table.add_column("tokens", justify="right")
    table.add_column("loss", justify="right")
    for row in active_points(view):
        table.add_row(*row)
    bar = ProgressBar(total=points.get("total") or 1, completed=done, width=60)
    return Group(Text(f"    {headline(view)}"), Text("    ", end=""), bar, table)
