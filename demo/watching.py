"""Watches the sweep and the prediction, and shows their progress.

On a terminal as a live table, elsewhere as a line for each change.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo import places
from demo.kubectl import Kubectl

POLL_SECONDS = 2.0
LINE_SECONDS = 10.0
STILL_SECONDS = 600.0
"""Without any change for this long, something is wrong that no condition reports."""

Json = dict[str, Any]


class DemoFailed(RuntimeError):
    """The demo cannot finish; the message says why."""


@dataclass(frozen=True)
class View:
    """Both resources, read together."""

    sweep: Json
    prediction: Json

    def condition(self, which: Json, name: str) -> Json:
        """A condition observed for the current generation, or {}."""
        generation = which.get("metadata", {}).get("generation")
        for condition in which.get("status", {}).get("conditions", ()):
            if condition["type"] == name and condition.get("observedGeneration") == generation:
                return dict(condition)
        return {}

    def is_true(self, which: Json, name: str) -> bool:
        """Whether a condition is True for the current generation."""
        return self.condition(which, name).get("status") == "True"

    @property
    def is_ready(self) -> bool:
        """Whether sweep and prediction are ready, the report is drawn and the prediction is not stale."""
        changes = self.is_true(self.prediction, "Stale") or self.is_true(self.sweep, "Reconciling")
        ready = self.is_true(self.prediction, "Ready") and self.is_true(self.sweep, "Ready")
        return ready and not changes

    @property
    def stalled(self) -> Json:
        """The condition that says that only the user can help, or {}."""
        for which in (self.sweep, self.prediction):
            if self.is_true(which, "Stalled"):
                return self.condition(which, "Stalled")
        return {}

    @property
    def state(self) -> Json:
        """What changes as long as the demo makes progress."""
        return {"sweep": self.sweep.get("status"), "prediction": self.prediction.get("status")}


def read_view(kubectl: Kubectl) -> View:
    """Both resources now."""
    return View(
        kubectl.get("scalingsweep", places.SWEEP, places.NAMESPACE),
        kubectl.get("hyperparamprediction", places.PREDICTION, places.NAMESPACE),
    )


def watch(kubectl: Kubectl, check: Callable[[], None]) -> View:
    """Show progress until the prediction is ready. `check` raises if a process has ended.

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
        if view.state != last:
            moved, last = time.monotonic(), view.state
        if time.monotonic() - moved > STILL_SECONDS:
            raise DemoFailed(f"nothing has changed for {STILL_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


# ------------------------------------------------------------------------------------ in words


def headline(view: View) -> str:
    """The current state in one line."""
    status = view.sweep.get("status", {})
    points = status.get("points", {})
    total = points.get("total", 0)
    done = sum(points.get(state, 0) for state in ("succeeded", "diverged", "failed"))
    ready = view.condition(view.sweep, "Ready")
    if ready.get("status") == "True":
        answer = view.condition(view.prediction, "Ready")
        return f"points {done}/{total}, laws fitted; prediction: {answer.get('reason', 'waiting')}"
    if not total:
        return f"sweep: {ready.get('reason', 'waiting for the operator')}"
    left = _time_left(str(status.get("estimatedCompletion", "")))
    active = points.get("active", 0)
    return f"points {done}/{total}, {active} active, {ready.get('reason', 'waiting for the operator')}{left}"


def active_points(view: View) -> list[tuple[str, str, str]]:
    """Name, tokens and loss of the points that are training."""
    found = view.sweep.get("status", {}).get("active", ())
    return [(p["name"], f"{p.get('tokens', 0):,}", p.get("loss", "")) for p in found]


def _time_left(completion: str) -> str:
    from datetime import UTC, datetime

    try:
        end = datetime.fromisoformat(completion)
    except ValueError:
        return ""
    seconds = max(0.0, (end - datetime.now(UTC)).total_seconds())
    return f", about {seconds // 60:.0f} min {seconds % 60:02.0f} s left"


def _print_lines() -> Callable[[View], None]:
    """A printer of changes, at most one line every LINE_SECONDS."""
    due, last = 0.0, ""

    def show(view: View) -> None:
        nonlocal due, last
        points = "; ".join(
            f"{name} {tokens} tokens{f', loss {loss}' if loss else ''}"
            for name, tokens, loss in active_points(view)
        )
        line = headline(view) + (f" [{points}]" if points else "")
        # A change of the time left alone is not printed.
        news = f"{headline(view).partition(', about')[0]} {points}"
        if news != last and (time.monotonic() >= due or view.is_ready):
            due, last = time.monotonic() + LINE_SECONDS, news
            sys.stdout.write(f"    {line}\n")
            sys.stdout.flush()

    return show


def _picture(view: View) -> RenderableType:
    points = view.sweep.get("status", {}).get("points", {})
    done = sum(points.get(state, 0) for state in ("succeeded", "diverged", "failed"))
    table = Table(box=None, padding=(0, 2, 0, 4), show_header=bool(active_points(view)))
    table.add_column("training now", style="cyan")
    table.add_column("tokens", justify="right")
    table.add_column("loss", justify="right")
    for row in active_points(view):
        table.add_row(*row)
    bar = ProgressBar(total=points.get("total") or 1, completed=done, width=60)
    return Group(Text(f"    {headline(view)}"), Text("    ", end=""), bar, table)
