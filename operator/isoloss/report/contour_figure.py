"""Iso-loss contours in the plane of batch size and learning rate, with vertices and their ellipses.

One row per model size, with loss levels from high to low. The lines show how many more tokens than at
the optimum a run needs to reach the level: +1%, +3%, +10%, +30%, +100%.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from isoloss import formatting
from isoloss.laws import Array, Contour, Laws, Optimum
from isoloss.report import drawing
from isoloss.report.content import optimum_in_words
from isoloss.report.inline_svg import add_tooltips
from isoloss.summaries import in_words

EXTRA_TOKENS = (0.01, 0.03, 0.10, 0.30, 1.00)
MAX_LEVELS = 4
MAX_SIZES = 6
LABEL_ROOM = 0.07
"""Share of a panel's side between the middle of a label and a mark, an edge or another label."""
_Level = tuple[Contour, Optimum]


@drawing.style()
def plot_contours(laws: Laws) -> drawing.Figure:
    """The tokens that reach a loss, over batch size and learning rate.

    Rows are sizes, columns loss levels from the highest to the lowest that the size covers; levels without an optimum inside
    the grid are left out, with a line that says so.

    >>> figure = isoloss.plot_contours(laws)
    """
    levels = [
        (contour, _optimum_of(laws, contour))
        for contour in sorted(laws.contours, key=lambda contour: -contour.loss)
    ]
    found = [(contour, at) for contour, at in levels if at and at.status != "refused"]
    left_out = _left_out([at for _, at in levels if not at or at.status == "refused"])
    sizes = drawing.shown_sizes((contour.params for contour, _ in found), MAX_SIZES)
    if not sizes:
        figure = drawing.Figure(figsize=(8.0, 0.8))
        axes = figure.subplots()
        axes.set_axis_off()
        drawing.note(axes, left_out or "No loss level is covered by enough runs.")
        return figure
    chosen = {size: _spread([each for each in found if each[0].params == size]) for size in sizes}
    columns = max(map(len, chosen.values()))
    figure = drawing.Figure(
        figsize=(max(5.2, 2.9 * columns), 2.75 * len(sizes) + 0.6), layout="constrained"
    )
    panels = figure.subplots(len(sizes), columns, squeeze=False)
    for row, size in zip(panels, sizes, strict=True):
        for panel in row[len(chosen[size]) :]:
            panel.set_visible(False)
        for panel, (contour, optimum) in zip(row, chosen[size], strict=False):
            _panel(panel, contour, optimum, laws.options.interval)
        row[0].set_ylabel(f"{formatting.count(size)} parameters\nlearning rate")
    for column in panels.T:
        lowest = [panel for panel in column if panel.get_visible()][-1]
        lowest.set_xlabel("batch size (sequences)")
    if left_out:
        figure.suptitle(left_out, x=0.01, ha="left", fontsize=8)
    _legend(figure, laws.options.interval)
    return figure


def _left_out(refused: Sequence[Optimum | None]) -> str:
    """How many levels have no optimum inside the grid, and why; empty: all have one."""
    if not refused:
        return ""
    reasons = [in_words(at.refusal.reason.value) for at in refused if at and at.refusal]
    why = f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
    levels = formatting.counted(len(refused), "loss level")
    return f"Left out: {levels} without an optimum inside the grid{why}."


def _spread(levels: Sequence[_Level]) -> list[_Level]:
    """At most MAX_LEVELS of them, the first and the last included."""
    picked = np.linspace(0, len(levels) - 1, min(len(levels), MAX_LEVELS)).round().astype(int)
    return [levels[index] for index in picked]


def _optimum_of(laws: Laws, contour: Contour) -> Optimum | None:
    for optimum in laws.optima:
        if optimum.params == contour.params and np.isclose(optimum.loss, contour.loss):
            return optimum
    return None


def _panel(axes: Axes, contour: Contour, optimum: Optimum, level: float) -> None:
    batches, rates = contour.batch_sizes, contour.learning_rates
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low_b, high_b = float(batches.min()) / 1.25, float(batches.max()) * 1.25
    low_r, high_r = float(rates.min()) / 1.25, float(rates.max()) * 1.25
    axes.set_title(f"loss {formatting.loss(contour.loss)}", loc="left")
    axes.set_xlim(low_b, high_b)
    axes.set_ylim(low_r, high_r)
    _tokens_lines(axes, contour, optimum, (low_b, high_b), (low_r, high_r))
    _vertex(axes, optimum, level)
    _points(axes, contour)
    drawing.grid_axis(axes.xaxis, batches.tolist(), learning_rates=False)
    drawing.grid_axis(axes.yaxis, rates.tolist(), learning_rates=True)


def _tokens_lines(
    axes: Axes,
    contour: Contour,
    optimum: Optimum,
    batches: tuple[float, float],
    rates: tuple[float, float],
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
        np.exp(grid_b), np.exp(grid_r), excess, levels=levels, colors=drawing.SOFT, linewidths=0.7
    )
    marks = np.column_stack([contour.batch_sizes, contour.learning_rates])
    marks = np.vstack([marks, [optimum.batch_size or np.nan, optimum.learning_rate or np.nan]])
    axes.clabel(
        lines,
        manual=_label_places(lines.allsegs, marks, np.array([batches, rates])),
        fmt={level: f"+{extra:.0%}" for level, extra in zip(levels, EXTRA_TOKENS, strict=True)},
        fontsize=6.5,
        colors=drawing.INK,
    )


def _label_places(
    lines: Sequence[Sequence[Array]], marks: Array, limits: Array
) -> list[tuple[float, float]]:
    """The point (B, LR) of each level's lines that is farthest from marks, edges and the labels before it.

    `marks` are (n, 2), `limits` (2, 2) rows of low and high. A level without room for a label has none.
    """
    low, high = np.log(limits).T
    taken = (np.log(marks[np.isfinite(marks).all(axis=1)]) - low) / (high - low)
    places = []
    for parts in lines:
        points = np.concatenate([part for part in parts if len(part)] or [np.empty((0, 2))])
        shares = (np.log(points) - low) / (high - low)
        edges = np.minimum(shares, 1.0 - shares).min(axis=1, initial=1.0)
        gaps = np.linalg.norm(shares[:, None] - taken, axis=-1).min(axis=1, initial=1.0)
        room = np.minimum(edges, gaps)
        if len(room) and room.max() > LABEL_ROOM:
            best = int(room.argmax())
            taken = np.vstack([taken, shares[best]])
            places.append((float(points[best, 0]), float(points[best, 1])))
    return places


def _points(axes: Axes, contour: Contour) -> None:
    bound = np.array(contour.bounds, dtype=bool)
    reached = ~bound & np.isfinite(contour.log_tokens)
    used = contour.weights > 0
    for mask, marker, face in (
        (bound, "^", "white"),
        (reached & ~used, "o", "white"),
        (reached & used, "o", drawing.INK),
    ):
        (points,) = axes.plot(
            contour.batch_sizes[mask],
            contour.learning_rates[mask],
            linestyle="none",
            marker=marker,
            markersize=3.8,
            markerfacecolor=face,
            markeredgecolor=drawing.INK,
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
            facecolor=drawing.BAND,
            edgecolor=drawing.ACCENT,
            linewidth=1.0,
            zorder=0,
        )
    (cross,) = axes.plot(
        [optimum.batch_size],
        [optimum.learning_rate],
        marker="+",
        markersize=9,
        markeredgewidth=1.8,
        color=drawing.ACCENT,
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


def _legend(figure: drawing.Figure, level: float) -> None:
    dot = {"markersize": 4, "markeredgecolor": drawing.INK}
    drawing.legend_below(
        figure,
        [
            drawing.key("run, used", marker="o", markerfacecolor=drawing.INK, **dot),
            drawing.key("run, not used", marker="o", markerfacecolor="white", **dot),
            drawing.key(
                "run, loss not reached (bound)", marker="^", markerfacecolor="white", **dot
            ),
            drawing.key(
                f"optimum with {level:.0%} ellipse",
                marker="+",
                markersize=9,
                markeredgewidth=1.8,
                color=drawing.ACCENT,
            ),
            drawing.key(
                "more tokens than at the optimum", color=drawing.SOFT, linewidth=0.8, linestyle="-"
            ),
        ],
    )
