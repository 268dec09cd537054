"""A sequential search as a map per size: which points ran how far, what was pruned, and what was added."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from isoloss import formatting
from isoloss.progress.picture import cost_line
from isoloss.progress.sweep_state import PointView, SizeView, SweepState
from isoloss.progress.words import bound_in_words, reason_in_words
from isoloss.report.content import Table
from isoloss.report.drawing import INK, SOFT, Figure, grid_axis, key, legend_below, style
from isoloss.report.inline_svg import told
from isoloss.stages import UNDER_WAY, Stage
from isoloss_contract.ledger import AddedPoint

MAX_SIZES = 6
MAX_ROWS = 200
COLUMNS = 3
RING = 15.0
"""Diameter in points of the ring that stands for all tokens; a disk inside it covers the trained share."""
MARK = 0.6 * RING
"""A cross of this width stays within the ring, clear of the number below it."""
STAR = 0.45 * RING
"""Fits on the disk of a point with 30 % of its tokens."""


@style()
def search_map(state: SweepState) -> Figure:
    """A panel per size, the smallest first; if there are more than MAX_SIZES, the last ones."""
    sizes = state.sizes[-MAX_SIZES:]
    columns = min(COLUMNS, max(len(sizes), 1))
    rows = max(math.ceil(len(sizes) / columns), 1)
    figure = Figure(figsize=(max(5.2, 3.4 * columns), 3.0 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, size in zip(panels, sizes, strict=False):
        _panel(panel, size, state)
    for panel in panels[len(sizes) :]:
        panel.set_visible(False)
    _legend(figure)
    return figure


def search_sentence(state: SweepState) -> str:
    """The number of points by what became of them, and the cost next to that of the whole grid."""
    stages = state.stages
    told = [f"{stages[s]} {s.word}" for s in Stage if stages[s] and s not in UNDER_WAY]
    if under_way := sum(stages[stage] for stage in UNDER_WAY):
        # The ledger does not say which of them have a pod.
        told.append(f"{under_way} under way")
    return (
        f"{formatting.counted(len(state.points), 'point')}: {', '.join(told)}; {cost_line(state)}."
    )


def search_table(state: SweepState) -> Table:
    """Points that were pruned or added, with reasons and bounds."""
    chosen = [p for p in state.points if p.stage is Stage.PRUNED or _addition(state, p)]
    rows = tuple(
        (
            point.record.name,
            point.stage.word,
            formatting.count(point.tokens),
            formatting.percent(point.share),
            _why(point, _addition(state, point)),
        )
        for point in chosen[:MAX_ROWS]
    )
    heads = ("point", "state", "tokens", "of its end", "why")
    return Table(heads, rows, frozenset({2, 3}), more=max(0, len(chosen) - MAX_ROWS))


def _why(point: PointView, added: AddedPoint | None) -> str:
    intent = point.record.intent
    parts = [reason_in_words(intent.reason), bound_in_words(intent)]
    if added is not None:
        parts.insert(0, f"added ({reason_in_words(added.reason)})")
    return "; ".join(dict.fromkeys(part for part in parts if part))


def _addition(state: SweepState, point: PointView) -> AddedPoint | None:
    return state.ledger.addition_of(point.record)


def _panel(axes: Axes, size: SizeView, state: SweepState) -> None:
    batches = [float(point.record.batch_size) for point in size.points]
    rates = [point.record.learning_rate for point in size.points]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(min(batches) / 1.5, max(batches) * 1.5)
    axes.set_ylim(min(rates) / 1.5, max(rates) * 1.5)
    grid_axis(axes.xaxis, batches, learning_rates=False)
    grid_axis(axes.yaxis, rates, learning_rates=True)
    axes.set_title(size.name, loc="left", parse_math=False)
    axes.set_xlabel("batch size (sequences)")
    axes.set_ylabel("learning rate")
    for point in size.points:
        added = _addition(state, point)
        if added is not None and added.seed is not None:
            continue  # a repeat lies on the point that it repeats: the table has it
        _point(axes, point, is_added=added is not None, is_best=point is size.best)


def _point(axes: Axes, point: PointView, *, is_added: bool, is_best: bool) -> None:
    place = float(point.record.batch_size), point.record.learning_rate
    shape = "s" if is_added else "o"
    ring = RING * (0.89 if is_added else 1.0)  # a square of that side has the area of the circle

    def mark(marker: str, size: float, **look: Any) -> Line2D:
        (drawn,) = axes.plot([place[0]], [place[1]], marker=marker, markersize=size, **look)
        return drawn

    edge = INK if point.tokens else SOFT
    outline = mark(
        shape, ring, markerfacecolor="white", markeredgecolor=edge, markeredgewidth=0.7, zorder=2
    )
    told(outline, [_in_words(point)])
    if point.tokens:
        face = SOFT if point.stage is Stage.PRUNED else INK
        size = ring * math.sqrt(point.share)
        disk = mark(shape, size, markerfacecolor=face, markeredgewidth=0, zorder=3)
        told(disk, [_in_words(point)])
    if sign := _MARKS.get(point.stage):
        mark(sign, MARK, markeredgecolor=INK, markeredgewidth=1.3, zorder=4)
    if is_best:
        # White on the disk: a thicker ring is not seen around a disk that fills it.
        mark("*", STAR, markerfacecolor="white", markeredgewidth=0, zorder=5)
    bound = point.record.intent.bound
    if point.stage is Stage.PRUNED and bound is not None:
        axes.annotate(
            f"+{formatting.number(bound, 2)}",
            place,
            xytext=(0, -RING / 2 - 1.5),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=6.5,
            color=INK,
        )


def _in_words(point: PointView) -> str:
    loss = f", loss {formatting.loss(point.loss)}" if point.loss is not None else ""
    return (
        f"{point.record.name}\nlearning rate {formatting.learning_rate(point.record.learning_rate)}, "
        f"batch size {point.record.batch_size}\n{point.stage.word}: "
        f"{formatting.percent(point.share)} of its tokens{loss}"
    )


_MARKS = {Stage.PRUNED: "x", Stage.DIVERGED: "+", Stage.FAILED: "1"}


def _legend(figure: Figure) -> None:
    ring = {"markersize": 9, "markerfacecolor": "white", "markeredgecolor": INK}
    handles = [
        key("trained to its end", marker="o", markersize=9, markeredgecolor=INK),
        key("trained in part (area)", marker="o", markersize=5, markeredgecolor=INK),
        key("not trained", marker="o", **{**ring, "markeredgecolor": SOFT}),
        key("pruned, bound in nats", marker="x", markersize=8, markeredgewidth=1.3),
        key("diverged", marker="+", markersize=9, markeredgewidth=1.3),
        key("added to the grid", marker="s", **ring),
        key("lowest loss", marker="*", **ring, markeredgewidth=0.7),
    ]
    legend_below(figure, handles)
