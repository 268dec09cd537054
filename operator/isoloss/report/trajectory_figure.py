"""Loss over tokens of every run, one panel per model size, with the iso-loss levels."""

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
from matplotlib.figure import Figure

from isoloss import formatting
from isoloss.laws import Array, Laws, Run
from isoloss.report.drawing import INK, LINE_STYLES, SOFT, grid_axis, key, log_ticks, note, style

MAX_PANELS = 8
JOINED = 8
"""Runs with fewer evaluations are joined by configuration: published tables have one row per run."""
CROWDED = 60
"""Above this many lines, a panel is rasterised inside the vector file and its lines are thinner."""


@dataclass(frozen=True)
class _Line:
    """One configuration's evaluations; runs of different length are joined."""

    learning_rate: float
    batch_size: float
    tokens: Array
    losses: Array
    diverged: bool
    finished: bool


@dataclass(frozen=True)
class _Look:
    """How configurations are distinguished: shades of the learning rate, line styles of the batch size."""

    shades: ScalarMappable
    batches: Sequence[float]

    def line_style(self, batch_size: float) -> Any:
        return LINE_STYLES[self.batches.index(batch_size) % len(LINE_STYLES)]


def trajectories(runs: Sequence[Run], laws: Laws) -> Figure:
    """Loss in nats per token over tokens; shades show the learning rate, line styles the batch size."""
    with style():
        return _draw(runs, laws)


def runs_from_contours(laws: Laws) -> tuple[Run, ...]:
    """Runs from the laws alone: their tokens to each iso-loss level."""
    reached: dict[tuple[str, float, float, float], list[tuple[float, float]]] = defaultdict(list)
    for contour in laws.contours:
        for index, name in enumerate(contour.run_names):
            if contour.bounds[index] or not np.isfinite(contour.log_tokens[index]):
                continue
            key = (
                name,
                contour.params,
                float(contour.batch_sizes[index]),
                float(contour.learning_rates[index]),
            )
            reached[key].append((float(np.exp(contour.log_tokens[index])), contour.loss))
    return tuple(_remembered(laws, key, sorted(points)) for key, points in reached.items())


def _remembered(
    laws: Laws, key: tuple[str, float, float, float], points: list[tuple[float, float]]
) -> Run:
    name, params, batch_size, learning_rate = key
    return Run(
        name=name,
        params=params,
        batch_size=batch_size,
        sequence_length=laws.sequence_length or 1,
        learning_rate=learning_rate,
        tokens=np.array([tokens for tokens, _ in points]),
        losses=np.array([loss for _, loss in points]),
    )


def _draw(runs: Sequence[Run], laws: Laws) -> Figure:
    by_size: dict[float, list[Run]] = defaultdict(list)
    for run in runs:
        if run.tokens.size:
            by_size[run.params].append(run)
    sizes = sorted(by_size)
    shown = sizes if len(sizes) <= MAX_PANELS else [*sizes[: MAX_PANELS - 1], sizes[-1]]
    columns = min(3 if len(shown) in (3, 5, 6) else 4, max(1, len(shown)))
    rows = -(-max(1, len(shown)) // columns)
    figure = Figure(
        figsize=(max(3.3 * columns, 5.2) + 1.0, 2.9 * rows + 0.5), layout="constrained"
    )
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for panel in panels[len(shown) :]:
        panel.set_visible(False)
    if not shown:
        note(panels[0], "No run has an evaluation.")
        return figure
    rates = [run.learning_rate for run in runs]
    shades = ScalarMappable(_norm(rates), mpl.colormaps["viridis"])
    batches = sorted({run.batch_size for run in runs})
    for index, (panel, size) in enumerate(zip(panels, shown, strict=False)):
        _panel(panel, size, by_size[size], laws, _Look(shades, batches))
        if index % columns == 0:
            panel.set_ylabel("validation loss (nats per token)")
    _legend(figure, panels[: len(shown)], shades, rates, batches, runs)
    return figure


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
                rate,
                batch,
                tokens[order],
                np.concatenate([run.losses for run in members])[order],
                any(run.diverged for run in members),
                all(run.finished for run in members),
            )
        )
    return lines


def _panel(axes: Axes, size: float, runs: Sequence[Run], laws: Laws, look: _Look) -> None:
    lines = _lines(runs)
    low, high = _loss_range(lines, laws, size)
    for line in lines:
        _plot(axes, line, look, crowded=len(lines) > CROWDED, top=high)
    for level in sorted({contour.loss for contour in laws.contours if contour.params == size}):
        axes.axhline(level, color=SOFT, linewidth=0.5, linestyle=(0, (1, 3)), zorder=0)
    axes.set_ylim(low, high)
    axes.set_xscale("log")
    tokens = np.concatenate([run.tokens for run in runs])
    first, last = float(tokens.min()) / 1.15, float(tokens.max()) * 1.15
    axes.set_xlim(first, last)
    log_ticks(axes.xaxis, first, last, formatting.count)
    axes.set_title(f"{formatting.count(size)} parameters", loc="left")
    axes.set_xlabel("training tokens")


def _plot(axes: Axes, line: _Line, look: _Look, *, crowded: bool, top: float) -> None:
    axes.plot(
        line.tokens,
        line.losses,
        color=look.shades.to_rgba(np.array([line.learning_rate]))[0],
        linestyle=look.line_style(line.batch_size) if not crowded else "-",
        linewidth=0.5 if crowded else 0.9,
        marker="." if line.tokens.size < 12 else None,
        markersize=3,
        rasterized=crowded,
    )
    if line.diverged or not line.finished:
        axes.plot(
            line.tokens[-1:],
            np.minimum(line.losses[-1:], top),
            marker="x" if line.diverged else "o",
            color=INK,
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
    figure: Figure,
    panels: Sequence[Axes],
    shades: ScalarMappable,
    rates: Sequence[float],
    batches: Sequence[float],
    runs: Sequence[Run],
) -> None:
    bar = figure.colorbar(shades, ax=list(panels), aspect=30, pad=0.02)
    bar.set_label("learning rate")
    grid_axis(bar.ax.yaxis, rates, learning_rates=True)
    bar.ax.set_ylim(min(rates), max(max(rates), min(rates) * 1.1))
    entries = [
        key(f"B = {batch:g}", linestyle=LINE_STYLES[index])
        for index, batch in enumerate(batches)
        if len(batches) <= len(LINE_STYLES)
    ]
    if any(run.diverged for run in runs):
        entries.append(key("diverged", marker="x"))
    if any(not run.finished for run in runs):
        entries.append(key("still training", marker="o", markerfacecolor="none"))
    entries.append(key("iso-loss level", color=SOFT, linewidth=0.6, linestyle=(0, (1, 3))))
    figure.legend(handles=entries, loc="outside lower left", ncols=min(8, len(entries)))
