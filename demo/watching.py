"""Watches the sweep and the prediction, and shows their progress.

On a terminal as `isoloss watch` does, elsewhere as a line for each change.
"""

import re
import sys
import time
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding

from demo import places
from demo.kubectl import Kubectl
from isoloss.cli.watching import screen
from isoloss.status import View, headline

POLL_SECONDS = 2.0
LINE_SECONDS = 10.0
INDENT = 4
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
        return _follow(
            kubectl, check, lambda view: live.update(_picture(view, console.width), refresh=True)
        )


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


def _picture(view: View, width: int) -> RenderableType:
    return Padding(screen(view, width - INDENT), (0, 0, 0, INDENT))
