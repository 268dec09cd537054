"""The joint surface against the optima of single sizes: learning rate and batch size over tokens.

The optima were found size by size at each loss level, without the surface, so that what deviates from its
lines is seen. One line style and marker per size, pale beyond the tokens of its own optima; below, the residuals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes

from isoloss import formatting
from isoloss.laws import Array, Laws, Optimum, OptimumPlanes
from isoloss.report.content import optimum_in_words
from isoloss.report.curves import around_zero, y_ticks
from isoloss.report.drawing import (
    INK,
    LINE_STYLES,
    MARKERS,
    Figure,
    key,
    legend_below,
    log_ticks,
    shown_sizes,
    style,
)
from isoloss.report.inline_svg import told

CURVE_POINTS = 60
PALE = "#b0b0b0"
"""Of a line where its size has no optimum."""
LOOKS = tuple(zip(MARKERS, cycle(LINE_STYLES), strict=False))
"""Marker and line style, one pair per size: distinguished without colour."""


def plot_surface(laws: Laws) -> Figure:
    """The joint surface and the optima of each size over training tokens.

    Raises ValueError if the surface was refused.
    """
    figure = surface_optima(laws)
    if figure is None:
        refusal = laws.surface.refusal
        why = f": {refusal.message}" if refusal is not None else ""
        raise ValueError(f"the joint surface was refused{why}")
    return figure


@style()
def surface_optima(laws: Laws) -> Figure | None:
    """The figure; None if the surface was refused or no size has an optimum."""
    planes = laws.surface.planes
    by_size = _optima_by_size(laws)
    if planes is None or not by_size:
        return None
    figure = Figure(figsize=(8.6, 4.9), layout="constrained")
    panels = figure.subplots(2, 2, height_ratios=(3.2, 1), sharex="col", squeeze=False)
    _quantity(panels[:, 0].tolist(), by_size, planes, learning_rate=True)
    _quantity(panels[:, 1].tolist(), by_size, planes, learning_rate=False)
    _legend(figure, list(by_size))
    return figure


def _optima_by_size(laws: Laws) -> dict[float, list[Optimum]]:
    found: dict[float, list[Optimum]] = {}
    for optimum in laws.optima:
        if optimum.params is not None and optimum.tokens and optimum.learning_rate:
            found.setdefault(optimum.params, []).append(optimum)
    return {size: found[size] for size in shown_sizes(found, len(MARKERS))}


def _quantity(
    panels: Sequence[Axes],
    by_size: Mapping[float, Sequence[Optimum]],
    planes: OptimumPlanes,
    *,
    learning_rate: bool,
) -> None:
    top, bottom = panels
    top.set_xscale("log")
    top.set_yscale("log")
    top.set_ylabel("learning rate" if learning_rate else "batch size (sequences)")
    bottom.set_xlabel("training tokens")
    tokens = np.array([item.tokens for found in by_size.values() for item in found], dtype=float)
    low, high = float(tokens.min()) / 1.15, float(tokens.max()) * 1.15

    def law(size: float, at: Array) -> Array:
        return np.exp(planes.at(np.log(size), np.log(at))[0 if learning_rate else 1])

    residuals = []
    for (marker, style_of_line), (size, found) in zip(LOOKS, by_size.items(), strict=False):
        x = np.array([item.tokens for item in found], dtype=float)
        y = np.array(
            [item.learning_rate if learning_rate else item.batch_size for item in found],
            dtype=float,
        )
        first, last = float(x.min()), float(x.max())
        for start, end, shade in ((low, first, PALE), (last, high, PALE), (first, last, INK)):
            line = np.geomspace(start, end, CURVE_POINTS)
            order = 1 if shade == PALE else 2
            top.plot(
                line,
                law(size, line),
                color=shade,
                linewidth=1,
                linestyle=style_of_line,
                zorder=order,
            )
        (marks,) = top.plot(x, y, marker, color=INK, markersize=4)
        told(marks, [optimum_in_words(item) for item in found])
        residuals.append(100 * (y / law(size, x) - 1))
        bottom.plot(x, residuals[-1], marker, color=INK, markersize=4)
    around_zero(bottom, np.concatenate(residuals), "residual (%)")
    bottom.set_xlim(low, high)
    log_ticks(bottom.xaxis, low, high, formatting.count)
    y_ticks(top, learning_rate)


def _legend(figure: Figure, sizes: Sequence[float]) -> None:
    entries = [
        key(
            f"{formatting.count(size)} parameters",
            marker=marker,
            markersize=4,
            linestyle=style_of_line,
            linewidth=1,
        )
        for (marker, style_of_line), size in zip(LOOKS, sizes, strict=False)
    ]
    entries.append(key("beyond its own optima", color=PALE, linestyle="-", linewidth=1))
    legend_below(figure, entries)
