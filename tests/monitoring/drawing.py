"""Draws the chart's dashboard as its JSON says, from what a Prometheus answers: no screenshot of Grafana."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matplotlib import color_sequences, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from PIL import Image

from isoloss.report.drawing import INK, SOFT, style
from tests.monitoring.prometheus import Prometheus
from tests.monitoring.rules import FILE, filled_in

Json = dict[str, Any]
COLUMN, ROW, HEAD = 0.5, 0.29, 0.3
"""A cell of Grafana's grid and the line above it, in inches."""
STATED = (
    "Drawn from the dashboard's JSON and the answers of a Prometheus; not a screenshot of Grafana."
)
OF_THE_SCRAPE = {"__name__", "job", "instance", "pod"}
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"), (1.0, ""))
_SECONDS = ((3600.0, " h"), (60.0, " min"), (1.0, " s"), (1e-3, " ms"), (1e-6, " µs"))
_BYTES = ((2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (1.0, " B"))


def _scaled(value: float, scales: Sequence[tuple[float, str]]) -> str:
    size, name = next((s for s in scales if abs(value) >= s[0] * (1 - 1e-9)), scales[-1])
    return f"{value / size:.3g}{name}" if value else "0"


UNITS: Mapping[str | None, Callable[[float], str]] = {
    None: lambda value: f"{value:.3g}",
    "short": lambda value: _scaled(value, _COUNTS),
    "percentunit": lambda value: f"{100 * value:.3g}%",
    "s": lambda value: _scaled(value, _SECONDS),
    "h": lambda value: f"{value:.3g} h",
    "ops": lambda value: f"{value:.3g} ops/s",
    "reqps": lambda value: f"{value:.3g} req/s",
    "bytes": lambda value: _scaled(value, _BYTES),
}
"""How values are written, by Grafana's name of the unit."""


def draw(server: Prometheus, start: float, end: float, file: Path) -> list[str]:
    """Every panel in its place, over these seconds since the epoch; the titles of those that show "No data"."""
    panels = json.loads(FILE.read_text())["panels"]
    height = HEAD + ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    empty: list[str] = []
    with style(), rc_context({"axes.prop_cycle": _colours(), "text.parse_math": False}):
        figure = Figure(figsize=(24 * COLUMN, height), dpi=110, facecolor="#f4f5f5")
        figure.text(0.005, 1 - HEAD / height / 2, STATED, color=SOFT, fontsize=9, va="center")
        for panel in panels:
            place = panel["gridPos"]
            x, width = place["x"] / 24, place["w"] / 24
            y = 1 - (HEAD + ROW * (place["y"] + place["h"])) / height
            left, bottom = x + 0.003, y + 0.06 / height
            size = (width - 0.006, (ROW * place["h"] - 0.12) / height)
            title: Json = {"fontsize": 10, "fontweight": "bold", "color": INK, "va": "center"}
            if panel["type"] == "row":
                figure.text(left, bottom + size[1] / 2, f"▾  {panel['title']}", **title)
                continue
            frame = figure.add_axes((left, bottom, *size), facecolor="white", xticks=(), yticks=())
            frame.spines[:].set(visible=True, color="#d8d9da")
            frame.text(0.03, 1 - 0.17 / (ROW * place["h"]), panel["title"], **title)
            inches = COLUMN * place["w"], ROW * place["h"]
            if not _KINDS[panel["type"]](frame, panel, server, (start, end), inches):
                frame.text(0.5, 0.45, "No data", color=SOFT, ha="center")
                empty.append(panel["title"])
        figure.savefig(file)
    # 256 colours, which makes it a third as large.
    few = Image.open(file).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    few.save(file, optimize=True)
    return empty


def _colours() -> Any:
    from cycler import cycler

    return cycler(color=color_sequences["petroff10"])


def _series(
    panel: Json, server: Prometheus, window: tuple[float, float]
) -> list[tuple[str, Json]]:
    """Names, as the legend has them, and series."""

    def name(legend: str, labels: Mapping[str, str]) -> str:
        return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), legend)

    return [
        (name(target["legendFormat"], series["metric"]), series)
        for target in panel["targets"]
        for series in server.query_range(filled_in(target["expr"]), *window)
    ]


def _lines(
    frame: Axes, panel: Json, server: Prometheus, window: tuple[float, float], inches: Any
) -> bool:
    found = _series(panel, server, window)
    if not found:
        return False
    width, height = inches
    axes = _figure(frame).add_axes(frame.get_position().bounds)
    axes.set_facecolor("none")
    unit = panel.get("fieldConfig", {}).get("defaults", {})
    lines = []
    for name, series in found:
        times, values = _with_gaps(series["values"])
        lines += axes.plot(
            times, values, label=name, linewidth=1.3, marker="." if len(values) == 1 else ""
        )
    low, high = axes.get_ylim()
    low = unit.get("min", low)
    axes.set_ylim(low, high if high > low else low + 1)
    span = axes.get_ylim()[1] - low
    is_bytes = unit.get("unit") == "bytes"
    step = 2.0 ** math.ceil(math.log2(span / 4))
    axes.yaxis.set_major_locator(
        MultipleLocator(step) if is_bytes else MaxNLocator(4, steps=[1, 2, 5, 10])
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: UNITS[unit.get("unit")](value)))
    axes.set_xlim(*window)
    minutes = next((m for m in (1, 2, 5, 10, 30, 60) if (window[1] - window[0]) / m <= 420), 120)
    axes.xaxis.set_major_locator(MultipleLocator(60.0 * minutes))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: f"{datetime.fromtimestamp(at, UTC):%H:%M}")
    )
    axes.grid(axis="y", color="#e6e7ea", linewidth=0.6)
    axes.tick_params(labelsize=8, length=2)
    below = 0.3 + _legend(frame, lines, width)
    box = frame.get_position()
    across, up = box.width / width, box.height / height
    place = (box.x0 + 0.68 * across, box.y0 + below * up, box.width - 0.9 * across)
    axes.set_position((*place, box.height - (below + 0.42) * up))
    return True


def _figure(frame: Axes) -> Figure:
    figure = frame.get_figure(root=True)
    assert figure is not None
    return figure


def _legend(frame: Axes, lines: Any, width: float) -> float:
    """Below, in as many columns as fit; its height in inches."""
    figure = _figure(frame)
    for columns in range(min(len(lines), 6), 0, -1):
        legend = frame.legend(
            handles=lines,
            ncols=columns,
            loc="lower left",
            fontsize=7.5,
            frameon=False,
            borderaxespad=0.3,
            handlelength=1.0,
            columnspacing=1.0,
            labelspacing=0.2,
            handletextpad=0.4,
        )
        extent = legend.get_window_extent()
        if columns == 1 or extent.width <= (width - 0.2) * figure.dpi:
            return float(extent.height / figure.dpi)
    return 0.0


def _with_gaps(samples: Sequence[tuple[float, str]]) -> tuple[list[float], list[float]]:
    """Lines break where samples are missing."""
    times: list[float] = []
    values: list[float] = []
    for at, value in samples:
        if times and at - times[-1] > 1.5 * Prometheus.STEP:
            times.append(times[-1])
            values.append(math.nan)
        times.append(at)
        values.append(float(value))
    return times, values


def _table(
    frame: Axes, panel: Json, server: Prometheus, window: tuple[float, float], inches: Any
) -> bool:
    asked = [filled_in(target["expr"]) for target in panel["targets"]]
    fixed = {name for each in asked for name in re.findall(r'(\w+)="', each)} | OF_THE_SCRAPE
    found = [sample for each in asked for sample in server.query(each)]
    names = sorted({name for sample in found for name in sample["metric"]} - fixed)
    rows = [names, *([sample["metric"].get(name, "") for name in names] for sample in found)]
    room = [2 + max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows if found else ()):
        for column, cell in enumerate(row):
            weight = "normal" if number else "bold"
            x, y = sum(room[:column]) / sum(room), (0.55 + 0.24 * number) / inches[1]
            frame.text(0.03 + 0.95 * x, 1 - y, cell, fontsize=8.5, fontweight=weight, va="center")
    return bool(found)


def _stat(
    frame: Axes, panel: Json, server: Prometheus, window: tuple[float, float], inches: Any
) -> bool:
    found = _series(panel, server, window)
    for name, series in found[:1]:
        value = UNITS["short"](float(series["values"][-1][1]))
        frame.text(0.5, 0.62, name, ha="center", fontsize=10)
        frame.text(0.5, 0.3, value, ha="center", fontsize=26, color="#1a7f37")
    return bool(found)


_KINDS = {"timeseries": _lines, "table": _table, "stat": _stat}
