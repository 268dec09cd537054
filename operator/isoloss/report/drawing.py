"""What all figures share: a style that prints in black and white, axes, and file formats.

Figures are made without pyplot: it keeps global state, and the operator draws in worker threads.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import figure as mpl_figure
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from isoloss.formatting import learning_rate

INK = "#111111"
ACCENT = "#0b4f8a"
"""Prints as black; only used together with another difference (marker, line style)."""
SOFT = "#777777"
BAND = "#d5d5d5"
FAINT = "#b8b8b8"
"""Of lines behind those that matter."""
LINE_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "svg.fonttype": "path",
    "svg.hashsalt": "isoloss",
    "figure.facecolor": "white",
}


class Figure(mpl_figure.Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        return as_png(self)


@contextmanager
def style() -> Iterator[None]:
    """The report's matplotlib settings, inside a with block or a function that this decorates."""
    with mpl.rc_context(_STYLE):
        yield


def as_svg(figure: mpl_figure.Figure) -> bytes:
    """The figure as SVG, on the page's own paper; equal figures give equal bytes."""
    return _saved(figure, format="svg", transparent=True, metadata={"Date": None})


def as_png(figure: mpl_figure.Figure) -> bytes:
    """The figure as PNG at 150 dots per inch."""
    return _saved(figure, format="png", dpi=150, metadata={"Software": None})


def _saved(figure: mpl_figure.Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with style():
        # Panels are placed once: where they are must not depend on which format is written first.
        if engine := figure.get_layout_engine():
            FigureCanvasAgg(figure)  # it measures the texts
            engine.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(buffer, **options)
    return buffer.getvalue()


def grid_axis(axis: Any, values: Sequence[float], learning_rates: bool) -> None:
    """Ticks on a logarithmic axis at the values of the grid, as many as fit."""
    unique = np.unique(np.asarray(values, dtype=float))
    unique = unique[np.isfinite(unique) & (unique > 0)]
    if not unique.size:
        return
    axis.set_major_locator(FixedLocator(_apart(unique.tolist(), room=0.13)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    write: Callable[[float], str] = learning_rate if learning_rates else "{:.0f}".format
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


def _apart(values: Sequence[float], room: float) -> list[float]:
    """First, last, and those between that are `room` (a share of the axis) from their neighbours."""
    span = np.log(values[-1] / values[0]) or 1.0
    kept = [values[0]]
    for value in values[1:-1]:
        if min(np.log(value / kept[-1]), np.log(values[-1] / value)) >= room * span:
            kept.append(value)
    return [*kept, values[-1]] if len(values) > 1 else kept


def log_ticks(axis: Any, low: float, high: float, write: Any) -> None:
    """Readable ticks for a logarithmic axis, whether it spans a fraction of a decade or many."""
    if high / low < 3:
        candidates = list(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
    else:
        steps = (
            (1, 1.5, 2, 3, 5, 7) if high / low < 12 else (1, 2, 5) if high / low < 300 else (1,)
        )
        decades = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
        candidates = [step * 10.0**decade for decade in decades for step in steps]
    inside = [tick for tick in candidates if low <= tick <= high]
    axis.set_major_locator(FixedLocator(inside[:: max(1, -(-len(inside) // 8))]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


def key(label: str, **style_of_line: Any) -> Line2D:
    """A legend entry of its own."""
    return Line2D([], [], label=label, **{"linestyle": "none", "color": INK} | style_of_line)


def shown_sizes(sizes: Iterable[float], most: int) -> list[float]:
    """Ascending; of more than `most` the smallest ones and the largest."""
    found = sorted(set(sizes))
    return found if len(found) <= most else [*found[: most - 1], found[-1]]


def legend_below(figure: Figure, entries: Sequence[Line2D]) -> None:
    """A legend under the panels, in as many columns as the figure's width has room for."""
    for columns in range(len(entries), 0, -1):
        legend = figure.legend(handles=entries, loc="outside lower left", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def note(axes: Axes, text: str) -> None:
    """A sentence in the middle of an empty panel."""
    axes.text(
        0.5,
        0.5,
        text,
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=8,
        color=INK,
        parse_math=False,
        in_layout=False,  # a long sentence must not shrink the panel
    )
