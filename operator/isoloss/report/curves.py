"""The elements of the figures of laws: curves with bands, points with intervals, residuals, axes."""

import textwrap
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from isoloss import formatting
from isoloss.laws import Array
from isoloss.report import drawing

READABLE = 5.0
"""Intervals are drawn up to this factor beyond the points and the law."""


def refused_panel(top: Axes, bottom: Axes, message: str) -> None:
    """A sentence in place of a curve."""
    for axes in (top, bottom):
        axes.set_xticks([])
        axes.set_yticks([])
    bottom.set_visible(False)
    drawing.note(top, "Refused.\n" + folded(message))


def folded(text: str) -> str:
    """A message in lines short enough for a panel."""
    return "\n".join(textwrap.wrap(text, width=46, max_lines=11, placeholder=" …"))


def interval_bars(axes: Axes, x: Array, y: Array, log_errors: Array, level: float) -> Line2D:
    """Points with their intervals at `level`, from standard errors of the logarithm. Returns the points."""
    spread = NormalDist().inv_cdf((1 + level) / 2) * np.nan_to_num(log_errors)
    points: Line2D = axes.errorbar(
        x,
        y,
        yerr=[y - y * np.exp(-spread), y * np.exp(spread) - y],
        fmt="o",
        color=drawing.INK,
        markersize=3.5,
        elinewidth=0.8,
        capsize=1.5,
        zorder=3,
    )[0]
    return points


def keep_readable(axes: Axes, values: Array) -> None:
    """Limit y to what is near `values`: one very wide interval would flatten everything else."""
    low, high = axes.get_ylim()
    reach = values.max() * READABLE
    if axes.get_yscale() == "log":
        low = max(low, values.min() / READABLE)
    axes.set_ylim(low, min(high, reach))


def x_range(x: Array, marks: Sequence[float]) -> tuple[float, float]:
    """The range of x that shows all points and all marks."""
    values = [*x.tolist(), *[mark for mark in marks if np.isfinite(mark) and mark > 0]]
    low, high = min(values), max(values)
    margin = (high / low) ** 0.06 if high > low else 1.1
    return low / margin, high * margin


def curve_with_band(
    axes: Axes,
    x: Array,
    y: Array,
    band: tuple[Array, Array] | None,
    inside: tuple[float, float],
) -> None:
    """A law with its band: solid over `inside`, the range of the data, dashed beyond it."""
    if band is not None:
        axes.fill_between(x, band[0], band[1], color=drawing.BAND, linewidth=0, zorder=0)
    seen = (x >= inside[0]) & (x <= inside[1])
    axes.plot(x, y, color=drawing.INK, linestyle=(0, (4, 3)), linewidth=1.0, zorder=1)
    axes.plot(x[seen], y[seen], color=drawing.INK, linewidth=1.6, zorder=2)


def scales(top: Axes, bottom: Axes, x: tuple[float, float], by_loss: bool, positive: bool) -> None:
    """Logarithmic axes with readable ticks."""
    top.set_xscale("log")
    if positive:
        top.set_yscale("log")
    top.set_xlim(*x)
    write = formatting.number if by_loss else formatting.flops
    drawing.log_ticks(bottom.xaxis, *x, write)
    if not by_loss:
        bottom.tick_params(axis="x", labelsize=7.5)


def y_ticks(axes: Axes, learning_rate: bool) -> None:
    """Ticks of a learning rate or a batch size."""
    if axes.get_yscale() != "log":
        return
    low, high = axes.get_ylim()
    drawing.log_ticks(
        axes.yaxis, low, high, formatting.learning_rate if learning_rate else formatting.batch_size
    )


def star(axes: Axes, x: float, y: float, interval: tuple[float, float]) -> None:
    """A prediction with its interval."""
    below, above = max(y - interval[0], 0.0), max(interval[1] - y, 0.0)
    axes.errorbar(
        [x],
        [y],
        yerr=[[below], [above]],
        fmt="*",
        color=drawing.ACCENT,
        markersize=12,
        markeredgecolor="white",
        markeredgewidth=0.6,
        elinewidth=1.4,
        capsize=3,
        zorder=6,
    )


def residuals_panel(axes: Axes, x: Array, residuals: Array, label: str, least: float) -> None:
    """What a law leaves unexplained, on as much of y above as below zero: at least `least`, so that little looks little."""
    axes.plot(x, residuals, "o", color=drawing.INK, markersize=3)
    axes.axhline(0, color=drawing.SOFT, linewidth=0.7)
    axes.set_ylabel(label)
    reach = max(float(np.max(np.abs(residuals))) * 1.25, least)
    axes.set_ylim(-reach, reach)
