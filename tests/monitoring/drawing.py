"""Draws a dashboard with matplotlib: its panels in their places, with their titles, units and legends.

Not Grafana's looks, but what Grafana is told to show. Of a table's columns those are left out that say
the same in every row: the time, the metric's name, the labels of the scrape and those the query fixes.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Protocol

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, Locator, MaxNLocator, MultipleLocator
from PIL import Image

from isoloss.report.drawing import INK, SOFT, style
from tests.monitoring.dashboard import Cell, Panel

COLUMN, ROW = 0.5, 0.28
"""A unit of Grafana's grid, in inches."""
HEADER = 0.35
GAP = 0.04
"""Between panels, on each side, in inches."""
COLUMNS = 24
DOTS_PER_INCH = 120
PAGE, BORDER = "white", "#d3d5d9"
COLOURS = mpl.color_sequences["petroff10"]
STATED = "Drawn from helm/isoloss/files/dashboard.json with matplotlib and a Prometheus; not a screenshot of Grafana."
SCRAPED = {"__name__", "job", "instance", "pod"}
"""Labels that are the same for everything one operator serves."""


@dataclass(frozen=True)
class Series:
    """One series of an answer."""

    labels: Mapping[str, str]
    times: tuple[float, ...]
    """Seconds since the epoch."""
    values: tuple[float, ...]
    """One per time."""


class Answers(Protocol):
    """Answers to a dashboard's queries between two times, in seconds since the epoch."""

    @property
    def start(self) -> float:
        """Where the axis of time begins."""

    @property
    def end(self) -> float:
        """Where it ends."""

    def over_time(self, expression: str) -> Sequence[Series]:
        """The series of an expression between both."""

    def now(self, expression: str) -> Sequence[Series]:
        """Its samples at the end, each a series of one value."""


@dataclass(frozen=True)
class Box:
    """A rectangle of the figure, in inches from its lower left corner."""

    left: float
    bottom: float
    width: float
    height: float

    @property
    def top(self) -> float:
        """Upper edge."""
        return self.bottom + self.height


def draw(panels: Sequence[Panel], answers: Answers) -> Figure:
    """Every panel in its place. ValueError for a kind of panel or a unit that cannot be drawn."""
    height = HEADER + ROW * max(panel.cell.y + panel.cell.height for panel in panels)
    with style():
        figure = Figure(figsize=(COLUMN * COLUMNS, height), dpi=DOTS_PER_INCH, facecolor=PAGE)
        _write(figure, 2 * GAP, height - HEADER / 2, STATED, color=SOFT, fontsize=9)
        for panel in panels:
            _drawer(panel)(figure, _box(panel.cell, height), panel, answers)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a picture for a page; of 256 colours, which makes it half as large."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    with style():
        figure.savefig(drawn, format="png")
    # Chosen by how far apart they are, not by their share of the area, of which lines have little.
    few = Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    few.save(packed, format="png", optimize=True)
    return packed.getvalue()


def _drawer(panel: Panel) -> Callable[[Figure, Box, Panel, Answers], None]:
    if panel.kind not in DRAWERS:
        raise ValueError(f"{panel.title!r} is a panel of the kind {panel.kind!r}: draw it, too")
    if panel.unit not in UNITS:
        raise ValueError(f"{panel.title!r} has the unit {panel.unit!r}: write it, too")
    return DRAWERS[panel.kind]


def _box(cell: Cell, height: float) -> Box:
    """Where a panel lies in a figure of that height."""
    return Box(
        COLUMN * cell.x + GAP,
        height - HEADER - ROW * (cell.y + cell.height) + GAP,
        COLUMN * cell.width - 2 * GAP,
        ROW * cell.height - 2 * GAP,
    )


# ------------------------------------------------------------------------------------------ panels


def _row(figure: Figure, box: Box, panel: Panel, answers: Answers) -> None:
    """A heading over the panels that follow."""
    middle = box.bottom + box.height / 2
    _write(figure, box.left, middle, f"▾ {panel.title}", fontsize=11, fontweight="bold")


def _time_series(figure: Figure, box: Box, panel: Panel, answers: Answers) -> None:
    """Lines over time, their legend below."""
    _frame(figure, box, panel.title)
    axes = figure.add_axes((0, 0, 1, 1), facecolor="none")
    lines: list[Line2D] = []
    seen: list[float] = []
    for target in panel.targets:
        for series in answers.over_time(target.expression):
            color = COLOURS[len(lines) % len(COLOURS)]
            times, values = _with_gaps(series)
            marker = "." if len(series.values) == 1 else ""
            label = _legend(target.legend, series.labels)
            lines += axes.plot(times, values, color=color, label=label, marker=marker)
            seen += series.values
    legend = _legend_below(figure, box, lines)
    _place(figure, axes, box, bottom=0.3 + legend)
    _time_axis(axes, answers)
    _value_axis(axes, panel, seen)
    if not lines:
        axes.set_axis_off()
        _no_data(figure, box)


def _table(figure: Figure, box: Box, panel: Panel, answers: Answers) -> None:
    """A row for every sample that holds now."""
    _frame(figure, box, panel.title)
    fixed = {label for each in panel.targets for label in re.findall(r'(\w+)="', each.expression)}
    samples = [series for each in panel.targets for series in answers.now(each.expression)]
    names = sorted({name for each in samples for name in each.labels} - fixed - SCRAPED)
    if not samples:
        _no_data(figure, box)
        return
    rows = [[*names, "Value"]]
    for sample in samples:
        cells = [sample.labels.get(name, "") for name in names]
        rows.append([*cells, UNITS[panel.unit](sample.values[-1])])
    # A heading is bold, and so wider than other text.
    room = [3 + max(1.4 * len(top), *map(len, rest)) for top, *rest in zip(*rows, strict=True)]
    line = 0.22
    for number, cells in enumerate(rows):
        y = box.top - 0.5 - line * number
        for column, cell in enumerate(cells):
            x = box.left + 0.12 + (box.width - 0.2) * sum(room[:column]) / sum(room)
            _write(figure, x, y, cell, fontsize=9, fontweight="normal" if number else "bold")


def _stat(figure: Figure, box: Box, panel: Panel, answers: Answers) -> None:
    """The last value of each series, large, its name above."""
    _frame(figure, box, panel.title)
    found = [
        (_legend(target.legend, series.labels), UNITS[panel.unit](series.values[-1]))
        for target in panel.targets
        for series in answers.over_time(target.expression)
    ]
    if not found:
        _no_data(figure, box)
        return
    share = (box.height - 0.4) / len(found)
    middle = box.left + box.width / 2
    for number, (name, value) in enumerate(found):
        y = box.top - 0.4 - share * (number + 0.5)
        _write(figure, middle, y + 0.35, name, fontsize=10, ha="center")
        _write(figure, middle, y - 0.05, value, ha="center", fontsize=26, color="#1a7f37")


DRAWERS: dict[str, Callable[[Figure, Box, Panel, Answers], None]] = {
    "row": _row,
    "timeseries": _time_series,
    "table": _table,
    "stat": _stat,
}
"""By the type of a panel."""


# ------------------------------------------------------------------------------------------- parts


def _write(figure: Figure, x: float, y: float, text: str, **how: Any) -> None:
    """Text at a place in inches, centred on its height."""
    place = {"transform": figure.dpi_scale_trans, "va": "center", "parse_math": False}
    figure.text(x, y, text, **{"color": INK, **place, **how})


def _frame(figure: Figure, box: Box, title: str) -> None:
    edge = Rectangle(
        (box.left, box.bottom),
        box.width,
        box.height,
        transform=figure.dpi_scale_trans,
        facecolor="white",
        edgecolor=BORDER,
        linewidth=0.8,
        zorder=-1,
    )
    figure.add_artist(edge)
    _write(figure, box.left + 0.12, box.top - 0.18, title, fontsize=10, fontweight="bold")


def _no_data(figure: Figure, box: Box) -> None:
    middle = box.bottom + box.height / 2
    _write(figure, box.left + box.width / 2, middle, "No data", ha="center", color=SOFT)


def _place(figure: Figure, axes: Axes, box: Box, bottom: float) -> None:
    """Put axes into a panel, between its title and `bottom` inches above its lower edge."""
    width, height = figure.get_size_inches()
    axes.set_position(
        (
            (box.left + 0.72) / width,
            (box.bottom + bottom) / height,
            (box.width - 0.92) / width,
            (box.height - bottom - 0.4) / height,
        )
    )


def _legend_below(figure: Figure, box: Box, lines: Sequence[Line2D]) -> float:
    """A legend at the lower edge of a panel, in as many columns as fit; its height in inches."""
    for columns in range(len(lines), 0, -1):
        legend = figure.legend(
            handles=lines,
            ncols=columns,
            loc="lower left",
            bbox_to_anchor=(box.left + 0.08, box.bottom + 0.02),
            bbox_transform=figure.dpi_scale_trans,
            borderaxespad=0,
            borderpad=0.3,
            handlelength=1.0,
            columnspacing=0.9,
            labelspacing=0.25,
            handletextpad=0.5,
        )
        extent = legend.get_window_extent()
        if columns == 1 or extent.width <= (box.width - 0.16) * figure.dpi:
            return float(extent.height / figure.dpi)
        legend.remove()
    return 0.0


def _legend(form: str, labels: Mapping[str, str]) -> str:
    """Grafana's legend format with the labels of a series."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), form)


def _with_gaps(series: Series) -> tuple[list[float], list[float]]:
    """Points of a line that breaks where samples are missing."""
    step = min((b - a for a, b in pairwise(series.times)), default=0.0)
    times: list[float] = []
    values: list[float] = []
    for time, value in zip(series.times, series.values, strict=True):
        if times and time - times[-1] > 1.5 * step:
            times.append(time)
            values.append(math.nan)
        times.append(time)
        values.append(value)
    return times, values


def _time_axis(axes: Axes, answers: Answers) -> None:
    axes.set_xlim(answers.start, answers.end)
    axes.xaxis.set_major_locator(_round_seconds(answers.end - answers.start))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda time, _: _clock(time)))


def _clock(time: float) -> str:
    """Hours and minutes, in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%H:%M")


def _value_axis(axes: Axes, panel: Panel, values: Sequence[float]) -> None:
    """Ticks in the panel's unit, from its minimum on."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low = min(finite) if panel.minimum is None else panel.minimum
    high = max(finite) if max(finite) > low else low + 1
    axes.set_ylim(low, low + 1.08 * (high - low))
    axes.yaxis.set_major_locator(_ticks(panel.unit, high - low))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: UNITS[panel.unit](value)))
    axes.grid(axis="y", color="#e6e7ea", linewidth=0.6)
    axes.tick_params(labelsize=8.5)


def _ticks(unit: str, span: float) -> Locator:
    """Round numbers of the unit as it is written: mebibytes, and minutes where there are any."""
    if unit == "bytes":
        return MultipleLocator(2 ** math.ceil(math.log2(span / 4)))
    if unit == "s" and span > 90:
        return _round_seconds(span)
    return MaxNLocator(5, steps=[1, 2, 5, 10])


def _round_seconds(span: float) -> Locator:
    """At most five ticks at whole minutes, hours or days; half a minute for short spans."""
    steps = (30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
    return MultipleLocator(next((step for step in steps if span / step <= 5), span / 5))


# ------------------------------------------------------------------------------------------- units


def _scaled(value: float, scales: Sequence[tuple[float, str]]) -> str:
    """In the largest unit that leaves at least 1; zero without one."""
    if not value:
        return "0"
    size, name = next((s for s in scales if abs(value) >= s[0] * (1 - 1e-9)), scales[-1])
    return f"{value / size:.3g} {name}".rstrip()


_NUMBERS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"), (1, ""))
_TIMES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIZES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1, "B"))

UNITS: dict[str, Callable[[float], str]] = {
    "short": lambda value: _scaled(value, _NUMBERS),
    "percentunit": lambda value: f"{100 * value:.3g}%",
    "s": lambda value: _scaled(value, _TIMES),
    "h": lambda value: f"{value:.3g} h",
    "ops": lambda value: f"{_scaled(value, _NUMBERS)} ops/s",
    "reqps": lambda value: f"{_scaled(value, _NUMBERS)} req/s",
    "bytes": lambda value: _scaled(value, _SIZES),
}
"""How a value is written, by Grafana's name of the unit."""
