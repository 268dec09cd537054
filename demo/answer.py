"""The last screen of the demo: the answer, what it rests on, the verdict, and what to type next. Pure."""

from pathlib import Path
from textwrap import wrap
from typing import Any

from isoloss import formatting
from isoloss.status import VALIDATED, View

WIDTH = 80
MAX_LINES = 14
INDENT = "    "


def last_screen(view: View, *, report: Path, log: Path, kubectl: str) -> list[str]:
    """At most MAX_LINES lines, under a title, of at most WIDTH characters.

    `kubectl` is a command line that lists the resources, empty if the machine has no kubectl.
    """
    prediction = view.prediction or {}
    found = prediction.get("status", {})
    budget = prediction.get("spec", {}).get("budget", {})
    planned = (
        f"{formatting.count(budget['tokens'])} more tokens"
        if budget.get("tokens")
        else f"{budget.get('flops', '')} more FLOPs"
    )
    rows = [
        ("learning rate", found.get("learningRate", {})),
        ("batch size (sequences)", found.get("batchSize", {})),
    ]
    answer = [f"For {planned} of the checkpoint, with 80% intervals:"] + [
        f"{name:<24}{each.get('value', ''):<10}[{each.get('low', '')}, {each.get('high', '')}]"
        for name, each in rows
    ]
    next_steps = [
        *_indented(f"Report with all figures: {report}"),
        *_indented(f"Everything printed on the way, and both resources in full: {log}"),
        *(_indented(f"Look around: {kubectl}") if kubectl else []),
        *_indented("Next: edit the grid in crds/examples/demo-sweep.yaml and type make demo again: "
               "only new points are trained. make demo-down stops everything."),
    ]  # fmt: skip
    above = [*(INDENT + line for line in answer), *_indented(_assumptions(view))]
    room = MAX_LINES - len(above) - len(next_steps)
    return [*above, *_fitting(_verdict(view), max(room, 1)), *next_steps]


def _indented(text: str) -> list[str]:
    """Folded and indented; a path longer than a line stays whole."""
    return [
        INDENT + line
        for line in wrap(text, WIDTH - len(INDENT), break_long_words=False, break_on_hyphens=False)
    ]


def _fitting(text: str, lines: int) -> list[str]:
    """As many whole sentences as fit; of a first one that does not, its beginning."""
    sentences = text.split(". ")
    for count in range(len(sentences), 0, -1):
        kept = ". ".join(sentences[:count])
        folded = _indented(kept if kept.endswith(".") else f"{kept}.")
        if len(folded) <= lines:
            return folded
    return [*_indented(text)[: lines - 1], INDENT + "..."]


def _assumptions(view: View) -> str:
    status = view.sweep.get("status", {})
    points = status.get("points", {}).get("succeeded", 0)
    sizes = len(view.sweep.get("spec", {}).get("proxies", ()))
    found: dict[str, Any] = (view.prediction or {}).get("status", {})
    factor = (found.get("extrapolation") or {}).get("computeFactor")
    asked = f", asked for {float(factor):.2g} times their compute" if factor else ""
    return (
        f"From laws of {formatting.counted(points, 'run')} of "
        f"{formatting.counted(sizes, 'model size')}{asked}. {_past(found)}".rstrip()
    )


def _past(status: dict[str, Any]) -> str:
    """What the checkpoint's pre-training is worth; empty without an answer."""
    past, total = (
        (status.get(name) or {}).get("value") for name in ("equivalentFlops", "totalFlops")
    )
    if not past or not total:
        return ""
    loss = float(status["initialLoss"]["value"])
    share = float(past) / float(total)
    return f"The checkpoint's loss, {loss:.2f} nats, is worth {share:.0%} of all compute."


def verdict_line(view: View) -> str:
    """What its validation says of the answer, in words; empty before it is over, or without any."""
    found = view.condition(view.prediction, VALIDATED)
    if not found or not view.is_judged:
        return ""
    return f"{VALIDATED}={found['status']} {found['reason']}: {found.get('message', '')}"


def _verdict(view: View) -> str:
    condition = view.condition(view.prediction, VALIDATED)
    if not condition:
        return "It was not checked: the prediction asks for no validation."
    places = ((view.prediction or {}).get("status", {}).get("validation") or {}).get("places", ())
    runs = formatting.counted(len(places), "continued run")
    return f"Checked by {runs}: {condition.get('reason', '')}. {condition.get('message', '')}"
