"""Loss over tokens of every run, one panel per model size, with the iso-loss levels.

Below each, the same runs as loss minus the best of that size at the same tokens: differences of a few
thousandths of a nat decide, and nobody sees them on the scale of the loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm

from isoloss import formatting
from isoloss.laws import Array, Laws, Run
from isoloss.report import drawing
from isoloss.report.drawing import style
from isoloss.report.inline_svg import add_tooltips
from isoloss.runs import RunSet

MAX_PANELS = 8
JOINED = 8
"""Runs with fewer evaluations are joined by configuration: published tables have one row per run."""
CROWDED = 60
"""Above this many lines, the grey ones are rasterised inside the vector file."""
STRONG = 9
"""Lines of a size that are drawn strongly: more cannot be told apart. The others are grey."""
MAX_KNOTS = 4000
"""Tokens at which the best loss is known."""


@dataclass(frozen=True)
class _Line:
    """One configuration's evaluations; runs of different length are joined."""

    name: str
    """The run's; of runs that were joined, the longest one's."""
    learning_rate: float
    batch_size: float
    tokens: Array
    losses: Array
    diverged: bool
    ended: bool
    """It is finished, or was stopped on the way: nothing follows."""


@dataclass(frozen=True)
class _Look:
    """How the best configurations of a size are told apart: shades of the learning rate, line styles of the batch size."""

    shades: ScalarMappable
    batches: Sequence[float]
    strong: Sequence[_Line]
    crowded: bool
    """Whether the grey lines are rasterised."""

    def of(self, line: _Line) -> dict[str, Any]:
        """A line's options for plot."""
        if not any(line is each for each in self.strong):
            return {
                "color": drawing.FAINT,
                "linewidth": 0.5,
                "zorder": 1,
                "rasterized": self.crowded,
            }
        style = drawing.LINE_STYLES[self.batches.index(line.batch_size) % len(drawing.LINE_STYLES)]
        return {
            "color": self.shades.to_rgba(np.array([line.learning_rate]))[0],
            "linestyle": style,
            "linewidth": 1.2,
            "marker": "." if line.tokens.size < 12 else None,
            "markersize": 3,
        }


@style()
def plot_trajectories(laws: Laws, runs: RunSet | Sequence[Run]) -> drawing.Figure:
    """Loss in nats per token over tokens of every run.

    Of each size the runs that end nearest to the best are drawn strongly: shades show the learning rate, line styles the batch
    size.

    >>> figure = isoloss.plot_trajectories(laws, runs)
    """
    runs = runs.runs if isinstance(runs, RunSet) else tuple(runs)
    by_size: dict[float, list[Run]] = defaultdict(list)
    for run in runs:
        if run.tokens.size:
            by_size[run.params].append(run)
    shown = drawing.shown_sizes(by_size, MAX_PANELS)
    if not shown:
        figure = drawing.Figure(figsize=(6.2, 3.4), layout="constrained")
        drawing.note(figure.subplots(), "No run has an evaluation.")
        return figure
    columns = min(3 if len(shown) in (3, 5, 6) else 4, len(shown))
    figure, pairs = _panels(len(shown), columns)
    rates = [run.learning_rate for run in runs]
    shades = ScalarMappable(_norm(rates), mpl.colormaps["viridis"])
    batches = sorted({run.batch_size for run in runs})
    band = _noise_band(laws)
    for index, ((upper, lower), size) in enumerate(zip(pairs, shown, strict=True)):
        lines = _lines(by_size[size])
        best = Envelope.of(lines)
        excess = [best.excess(line.tokens, line.losses) for line in lines]
        order = sorted(range(len(lines)), key=lambda k: (lines[k].diverged, excess[k][-1]))
        strong = [lines[k] for k in order[:STRONG]]
        look = _Look(shades, batches, strong, crowded=len(lines) > CROWDED)
        _panel(upper, size, lines, laws, look)
        _differences(lower, lines, excess, band and band[0], look)
        if index % columns == 0:
            upper.set_ylabel("validation loss (nats per token)")
            lower.set_ylabel("loss minus the best\n(nats per token)")
    _legend(
        figure, [panel for pair in pairs for panel in pair], shades, rates, batches, runs, laws
    )
    return figure


def _panels(count: int, columns: int) -> tuple[drawing.Figure, list[tuple[Axes, Axes]]]:
    """A figure with an upper and a lower panel for each of `count` sizes."""
    rows = -(-count // columns)
    figure = drawing.Figure(
        figsize=(max(3.3 * columns, 5.2) + 1.0, 4.7 * rows + 0.5), layout="constrained"
    )
    heights = (3.0, 1.8) * rows
    panels = figure.subplots(
        2 * rows,
        columns,
        squeeze=False,
        sharex="col" if rows == 1 else False,
        height_ratios=heights,
    )
    pairs = [
        (panels[2 * row, column], panels[2 * row + 1, column])
        for row in range(rows)
        for column in range(columns)
    ]
    for pair in pairs[count:]:
        for panel in pair:
            panel.set_visible(False)
    return figure, pairs[:count]


def _norm(rates: Sequence[float]) -> LogNorm:
    low, high = min(rates), max(rates)
    # Stop short of viridis's yellow: it vanishes on white paper.
    return LogNorm(low, high * (high / low) ** 0.18 if high > low else low * 1.1)


def _lines(runs: Sequence[Run]) -> list[_Line]:
    """One line per configuration; a long trajectory or a diverged run is a line of its own."""
    groups: dict[tuple[float, float, str], list[Run]] = defaultdict(list)
    for run in runs:
        alone = run.diverged or run.tokens.size >= JOINED
        groups[(run.learning_rate, run.batch_size, run.name if alone else "")].append(run)
    lines = []
    for (rate, batch, _), members in sorted(groups.items(), key=lambda item: item[0]):
        tokens = np.concatenate([run.tokens for run in members])
        order = np.argsort(tokens, kind="stable")
        lines.append(
            _Line(
                max(members, key=lambda run: float(run.tokens[-1])).name,
                rate,
                batch,
                tokens[order],
                np.concatenate([run.losses for run in members])[order],
                any(run.diverged for run in members),
                all(run.finished or run.stopped for run in members),
            )
        )
    return lines


def _panel(axes: Axes, size: float, lines: Sequence[_Line], laws: Laws, look: _Look) -> None:
    low, high = _loss_range(lines, laws, size)
    for line in lines:
        (drawn,) = axes.plot(line.tokens, line.losses, **look.of(line))
        add_tooltips(drawn, [_in_words(line)])
        _mark_end(axes, line, line.losses, high)
    for level in sorted({contour.loss for contour in laws.contours if contour.params == size}):
        axes.axhline(level, color=drawing.SOFT, linewidth=0.5, linestyle=(0, (1, 3)), zorder=0)
    axes.set_ylim(low, high)
    _token_axis(axes, lines)
    axes.set_title(f"{formatting.count(size)} parameters", loc="left")


def _in_words(line: _Line) -> str:
    return (
        f"{line.name}\nlearning rate {formatting.learning_rate(line.learning_rate)}, "
        f"batch size {formatting.batch_size(line.batch_size)}\n"
        f"loss {formatting.loss(float(line.losses[-1]))} at "
        f"{formatting.count(float(line.tokens[-1]))} tokens"
        + (", diverged" if line.diverged else "")
    )


def _token_axis(axes: Axes, lines: Sequence[_Line]) -> None:
    axes.set_xscale("log")
    tokens = np.concatenate([line.tokens for line in lines])
    first, last = float(tokens.min()) / 1.15, float(tokens.max()) * 1.15
    axes.set_xlim(first, last)
    drawing.log_ticks(axes.xaxis, first, last, formatting.count)


def _noise_band(laws: Laws) -> tuple[float, str] | None:
    """Nats that tell two runs apart, and what they are: the noise between seeds if it was measured."""
    if laws.run_noise is not None:
        noise, words = laws.run_noise.deviation, "noise between seeds"
    elif laws.surface.residual_rms is not None:
        noise, words = laws.surface.residual_rms, "residual of the surface"
    else:
        return None
    return noise, f"{words}, {formatting.number(noise, 2)} nats"


def _differences(
    axes: Axes, lines: Sequence[_Line], excess: Sequence[Array], noise: float | None, look: _Look
) -> None:
    """Loss minus the best, from 0 to where three quarters of the runs end; the band is `noise`, nats."""
    found = list(zip(lines, excess, strict=True))
    ends = [above[-1] for line, above in found if not line.diverged and np.isfinite(above[-1])]
    top = 1.15 * max(float(np.quantile(ends, 0.75)) if ends else 0.0, 3.0 * (noise or 0.0), 1e-3)
    for line, above in found:
        (drawn,) = axes.plot(line.tokens, above, **look.of(line))
        add_tooltips(
            drawn, [f"{_in_words(line)}, {formatting.number(float(above[-1]), 2)} above the best"]
        )
        _mark_end(axes, line, above, top)
    if noise is not None:
        axes.axhspan(0.0, noise, color=drawing.BAND, linewidth=0, zorder=0)
    axes.set_ylim(-0.03 * top, top)
    _token_axis(axes, lines)
    axes.set_xlabel("training tokens")


@dataclass(frozen=True)
class Envelope:
    """The lowest loss of any line at the same tokens, between evaluations linear in ln tokens."""

    log_tokens: Array
    """Ascending: the lines' evaluations, or MAX_KNOTS values from the first to the last."""
    losses: Array

    @classmethod
    def of(cls, lines: Sequence[_Line]) -> Envelope:
        """The envelope of at least one line."""
        # Batch sizes round the evaluations differently: thousands of lines have tens of thousands of them.
        knots = np.unique(np.log(np.concatenate([line.tokens for line in lines])))
        if knots.size > MAX_KNOTS:
            knots = np.linspace(knots[0], knots[-1], MAX_KNOTS)
        lowest = np.full(knots.size, np.inf)
        for line in lines:
            own = np.log(line.tokens)
            part = slice(knots.searchsorted(own[0]), knots.searchsorted(own[-1], side="right"))
            lowest[part] = np.fmin(lowest[part], np.interp(knots[part], own, line.losses))
        reached = np.isfinite(lowest)
        return cls(knots[reached], lowest[reached])

    def excess(self, tokens: Array, losses: Array) -> Array:
        """Losses minus the envelope at these tokens; 0 where they lie below it."""
        best = np.interp(np.log(tokens), self.log_tokens, self.losses)
        return np.asarray(losses - np.fmin(best, losses), dtype=float)


def _mark_end(axes: Axes, line: _Line, shown: Array, top: float) -> None:
    if line.diverged or not line.ended:
        axes.plot(
            line.tokens[-1:],
            np.minimum(shown[-1:], top),
            marker="x" if line.diverged else "o",
            color=drawing.INK,
            markerfacecolor="none",
            markersize=5,
            linestyle="none",
            clip_on=False,
            zorder=4,
        )


def _loss_range(lines: Sequence[_Line], laws: Laws, size: float) -> tuple[float, float]:
    """Cuts off what would squeeze the interesting part: early evaluations and diverged ends."""
    steady = [line for line in lines if not line.diverged] or list(lines)
    low = min(float(line.losses.min()) for line in steady)
    finals = np.quantile([line.losses[-1] for line in steady], 0.95)
    levels = [contour.loss for contour in laws.contours if contour.params == size]
    starts = np.quantile([line.losses[0] for line in steady], 0.5)
    high = max([*levels, float(finals), min(float(starts), low * 1.5)])
    margin = 0.06 * (high - low) or 0.1
    return low - margin, high + margin


def _legend(
    figure: drawing.Figure,
    panels: Sequence[Axes],
    shades: ScalarMappable,
    rates: Sequence[float],
    batches: Sequence[float],
    runs: Sequence[Run],
    laws: Laws,
) -> None:
    bar = figure.colorbar(shades, ax=list(panels), aspect=30, pad=0.02)
    bar.set_label("learning rate")
    drawing.grid_axis(bar.ax.yaxis, rates, learning_rates=True)
    bar.ax.set_ylim(min(rates), max(max(rates), min(rates) * 1.1))
    entries = [
        drawing.key(f"B = {batch:g}", linestyle=drawing.LINE_STYLES[index])
        for index, batch in enumerate(batches)
        if len(batches) <= len(drawing.LINE_STYLES)
    ]
    if any(run.diverged for run in runs):
        entries.append(drawing.key("diverged", marker="x"))
    if any(not (run.finished or run.stopped or run.diverged) for run in runs):
        entries.append(drawing.key("still training", marker="o", markerfacecolor="none"))
    if len(runs) > STRONG:
        entries.append(
            drawing.key("other runs", color=drawing.FAINT, linewidth=1.0, linestyle="-")
        )
    entries.append(
        drawing.key("iso-loss level", color=drawing.SOFT, linewidth=0.6, linestyle=(0, (1, 3)))
    )
    if band := _noise_band(laws):
        entries.append(drawing.key(band[1], color=drawing.BAND, linestyle="-", linewidth=7))
    drawing.legend_below(figure, entries)
