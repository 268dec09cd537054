"""Iso-loss contours in the plane of batch size and learning rate, with vertices and their ellipses.

One row per model size, with loss levels from high to low. The lines show how many more tokens than at
the optimum a run needs to reach the level: +1%, +3%, +10%, +30%, +100%.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from isoloss import formatting
from isoloss.laws import Array, Contour, Laws, Optimum
from isoloss.report.content import optimum_in_words
from isoloss.report.drawing import (
    ACCENT,
    BAND,
    INK,
    SOFT,
    Figure,
    grid_axis,
    key,
    legend_below,
    note,
    shown_sizes,
    style,
)
from isoloss.report.inline_svg import add_tooltips
from isoloss.summaries import in_words

EXTRA_TOKENS = (0.01, 0.03, 0.10, 0.30, 1.00)
MAX_LEVELS = 4
MAX_SIZES = 6


@style()
def plot_contours(laws: Laws) -> Figure:
    """The tokens that reach a loss, over batch size and learning rate.

    Rows are sizes, columns loss levels from the highest to the lowest that the size covers.
    """
    sizes = shown_sizes((contour.params for contour in laws.contours), MAX_SIZES)
    chosen = {size: _chosen_levels(laws, size) for size in sizes}
    if not sizes:
        figure = Figure(figsize=(5.2, 0.8))
        axes = figure.subplots()
        axes.set_axis_off()
        note(axes, "No loss level is covered by enough runs.")
        return figure
    columns = max([len(levels) for levels in chosen.values()], default=1)
    figure = Figure(
        figsize=(max(5.2, 2.9 * columns), 2.75 * len(sizes) + 0.6), layout="constrained"
    )
    panels = figure.subplots(len(sizes), columns, squeeze=False)
    for row, size in zip(panels, sizes, strict=True):
        for panel in row[len(chosen[size]) :]:
            panel.set_visible(False)
        for panel, contour in zip(row, chosen[size], strict=False):
            _panel(panel, contour, _optimum_of(laws, contour), laws.options.interval)
        row[0].set_ylabel(f"{formatting.count(size)} parameters\nlearning rate")
    for panel in panels[-1]:
        panel.set_xlabel("batch size (sequences)")
    _legend(figure, laws.options.interval)
    return figure


def _chosen_levels(laws: Laws, size: float) -> list[Contour]:
    found = sorted(
        (contour for contour in laws.contours if contour.params == size),
        key=lambda contour: -contour.loss,
    )
    if len(found) <= MAX_LEVELS:
        return found
    picked = np.unique(np.linspace(0, len(found) - 1, MAX_LEVELS).round().astype(int))
    return [found[index] for index in picked]


def _optimum_of(laws: Laws, contour: Contour) -> Optimum | None:
    for optimum in laws.optima:
        if optimum.params == contour.params and np.isclose(optimum.loss, contour.loss):
            return optimum
    return None


def _panel(axes: Axes, contour: Contour, optimum: Optimum | None, level: float) -> None:
    batches, rates = contour.batch_sizes, contour.learning_rates
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low_b, high_b = float(batches.min()) / 1.25, float(batches.max()) * 1.25
    low_r, high_r = float(rates.min()) / 1.25, float(rates.max()) * 1.25
    title = f"loss {formatting.loss(contour.loss)}"
    if optimum is not None and optimum.status != "refused":
        axes.set_title(title, loc="left")
        _tokens_lines(axes, contour, (low_b, high_b), (low_r, high_r))
        _vertex(axes, optimum, level)
    else:
        axes.set_title(title, loc="left", pad=15)  # above the reason
        reason = optimum.refusal.reason.value if optimum and optimum.refusal else "no optimum"
        _above(axes, in_words(reason))
    _points(axes, contour)
    axes.set_xlim(low_b, high_b)
    axes.set_ylim(low_r, high_r)
    grid_axis(axes.xaxis, batches.tolist(), learning_rates=False)
    grid_axis(axes.yaxis, rates.tolist(), learning_rates=True)


def _above(axes: Axes, text: str) -> None:
    axes.annotate(
        text,
        (0, 1),
        xytext=(0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=7.5,
        color=INK,
    )


def _tokens_lines(
    axes: Axes, contour: Contour, batches: tuple[float, float], rates: tuple[float, float]
) -> None:
    if contour.coefficients is None or contour.centre is None:
        return
    log_b = np.log(np.geomspace(*batches, 80))
    log_r = np.log(np.geomspace(*rates, 80))
    grid_b, grid_r = np.meshgrid(log_b, log_r)
    surface = contour.at(grid_r, grid_b)
    lowest = contour.lowest
    levels = [float(np.log1p(extra)) for extra in EXTRA_TOKENS]
    excess = surface - lowest
    if float(excess.max()) <= levels[0]:
        return
    lines = axes.contour(
        np.exp(grid_b), np.exp(grid_r), excess, levels=levels, colors=SOFT, linewidths=0.7
    )
    axes.clabel(
        lines,
        fmt={level: f"+{extra:.0%}" for level, extra in zip(levels, EXTRA_TOKENS, strict=True)},
        fontsize=6.5,
        colors=INK,
    )


def _points(axes: Axes, contour: Contour) -> None:
    bound = np.array(contour.bounds, dtype=bool)
    reached = ~bound & np.isfinite(contour.log_tokens)
    used = contour.weights > 0
    for mask, marker, face in (
        (bound, "^", "white"),
        (reached & ~used, "o", "white"),
        (reached & used, "o", INK),
    ):
        (points,) = axes.plot(
            contour.batch_sizes[mask],
            contour.learning_rates[mask],
            linestyle="none",
            marker=marker,
            markersize=3.8,
            markerfacecolor=face,
            markeredgecolor=INK,
            markeredgewidth=0.7,
            zorder=3,
        )
        add_tooltips(
            points, [_run_in_words(contour, int(index)) for index in np.flatnonzero(mask)]
        )


def _run_in_words(contour: Contour, index: int) -> str:
    tokens = formatting.count(float(np.exp(contour.log_tokens[index])))
    reached = (
        f"not reached in {tokens} tokens"
        if contour.bounds[index]
        else f"reached at {tokens} tokens"
    )
    return (
        f"{contour.run_names[index]}\n"
        f"learning rate {formatting.learning_rate(float(contour.learning_rates[index]))}, "
        f"batch size {formatting.batch_size(float(contour.batch_sizes[index]))}\n"
        f"loss {formatting.loss(contour.loss)} {reached}"
    )


def _vertex(axes: Axes, optimum: Optimum, level: float) -> None:
    if optimum.learning_rate is None or optimum.batch_size is None:
        return
    if optimum.covariance is not None and np.isfinite(optimum.covariance).all():
        outline = ellipse(
            np.log([optimum.learning_rate, optimum.batch_size]), optimum.covariance, level
        )
        axes.fill(
            np.exp(outline[1]),
            np.exp(outline[0]),
            facecolor=BAND,
            edgecolor=ACCENT,
            linewidth=1.0,
            zorder=0,
        )
    (cross,) = axes.plot(
        [optimum.batch_size],
        [optimum.learning_rate],
        marker="+",
        markersize=9,
        markeredgewidth=1.8,
        color=ACCENT,
        zorder=5,
    )
    add_tooltips(cross, [optimum_in_words(optimum)])


def ellipse(centre: Array, covariance: Array, level: float) -> Array:
    """(2, 100) outline that holds `level` of a two-dimensional normal distribution."""
    values, vectors = np.linalg.eigh(covariance)
    angle = np.linspace(0, 2 * np.pi, 100)
    # Two degrees of freedom: the chi-square quantile is -2 ln(1 - level).
    radius = np.sqrt(-2 * np.log(1 - level)) * np.sqrt(np.maximum(values, 0.0))
    circle = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)])
    return np.asarray(np.asarray(centre)[:, None] + vectors @ circle, dtype=float)


def _legend(figure: Figure, level: float) -> None:
    dot = {"markersize": 4, "markeredgecolor": INK}
    legend_below(
        figure,
        [
            key("run, used", marker="o", markerfacecolor=INK, **dot),
            key("run, not used", marker="o", markerfacecolor="white", **dot),
            key("run, loss not reached (bound)", marker="^", markerfacecolor="white", **dot),
            key(
                f"optimum with {level:.0%} ellipse",
                marker="+",
                markersize=9,
                markeredgewidth=1.8,
                color=ACCENT,
            ),
            key("more tokens than at the optimum", color=SOFT, linewidth=0.8, linestyle="-"),
        ],
    )
