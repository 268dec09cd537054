"""The three laws with bands and residuals, and a prediction placed on them.

Left to right: learning rate, batch size, loss over compute; below each, its residuals. Beyond the data
a curve is dashed, because it is an extrapolation there.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

from isoloss.laws import HyperparameterLaw, Laws, Prediction
from isoloss.report import curves, drawing
from isoloss.report.bands import from_scratch, hyperparameter_band, loss_band
from isoloss.report.content import any_law, optimum_in_words
from isoloss.report.inline_svg import add_tooltips

CURVE_POINTS = 160
KNOWN = "#b34700"
"""Colour of a known optimum."""
ROOM_FOR_BOTH = 0.75
"""Share of the axis up to C_pre at most, so that the label of both has room on its right."""
ROOM_FOR_TWO = 0.3
"""Share of the axis between C_pre and C_total from which their labels have room next to each other."""


@drawing.style()
def plot_laws(
    laws: Laws,
    prediction: Prediction | None = None,
    *,
    initial_loss: float | None = None,
    known_optimum: tuple[float, float] | None = None,
) -> drawing.Figure:
    """Learning rate and batch size over the loss, and the loss over compute, with bands and residuals.

    A prediction is a star on the curves, with an arrow from what its estimate gives for a run from scratch; with the
    checkpoint's loss in nats per token, C_pre is marked, too. `known_optimum` is a learning rate and a batch size, in
    sequences, that are known to be the best for a run from scratch of the prediction's total compute.

    >>> figure = isoloss.plot_laws(laws, answer)
    """
    if not any_law(laws):
        return _nothing(laws)
    figure = drawing.Figure(figsize=(11.2, 4.9), layout="constrained")
    panels = figure.subplots(2, 3, height_ratios=(3.2, 1), sharex="col", squeeze=False)
    known = known_optimum or (None, None)
    for place, law in enumerate((laws.learning_rate, laws.batch_size)):
        _hyperparameter_panels(panels[:, place].tolist(), laws, law, prediction, known[place])
    _loss_compute_panels(panels[:, 2].tolist(), laws, prediction, initial_loss)
    _legend(figure, laws, prediction, is_known=known_optimum is not None)
    return figure


def _nothing(laws: Laws) -> drawing.Figure:
    """The reasons instead of curves."""
    figure = drawing.Figure(figsize=(11.2, 2.2), layout="constrained")
    names = ("learning rate", "batch size", "loss over compute")
    parts = laws.learning_rate, laws.batch_size, laws.loss_compute
    reasons = [part.refusal.message if part.refusal else "" for part in parts]
    for axes, name, reason in zip(figure.subplots(1, 3), names, reasons, strict=True):
        axes.set_title(name, loc="left")
        axes.set_axis_off()
        drawing.note(axes, "Refused.\n" + curves.folded(reason))
    return figure


# ------------------------------------------------------------------------------------- f and g


def _hyperparameter_panels(
    panels: Sequence[Axes],
    laws: Laws,
    law: HyperparameterLaw,
    answer: Prediction | None,
    known: float | None,
) -> None:
    top, bottom = panels
    name = "learning rate" if law.quantity == "learning_rate" else "batch size (sequences)"
    by_loss = law.form == "PowerLawOfLoss"
    top.set_ylabel(name)
    bottom.set_xlabel("loss (nats per token)" if by_loss else "compute (FLOPs)")
    points = [each for each in laws.frontier if getattr(each, law.quantity) is not None]
    x = np.array([point.loss if by_loss else point.flops for point in points], dtype=float)
    y = np.array([getattr(point, law.quantity) for point in points], dtype=float)
    if law.curve is None or not points:
        curves.refused_panel(
            top, bottom, law.refusal.message if law.refusal else "No optimum was found."
        )
        return
    errors = np.array([point.standard_errors.get(law.quantity, 0.0) for point in points])
    marks = curves.interval_bars(top, x, y, errors, laws.options.interval)
    add_tooltips(marks, [optimum_in_words(point) for point in points])
    low, high = curves.x_range(x, _place_x(answer, by_loss))
    curve_x = np.geomspace(low, high, CURVE_POINTS)
    curve, band = hyperparameter_band(laws, law.curve, curve_x)
    curves.curve_with_band(top, curve_x, curve, band, (float(x.min()), float(x.max())))
    curves.scales(
        top, bottom, (low, high), by_loss, positive=law.quantity == "learning_rate" or by_loss
    )
    _mark_hyperparameter(top, law, answer, known)
    curves.keep_readable(top, np.concatenate([y, curve, _place_y(answer, law)]))
    fitted = hyperparameter_band(laws, law.curve, x)[0]
    curves.residuals_panel(bottom, x, 100 * (y / fitted - 1), "residual (%)", 20.0)
    curves.y_ticks(top, law.quantity == "learning_rate")
    if by_loss:
        top.invert_xaxis()  # training runs from left to right, towards lower loss


def _place_x(answer: Prediction | None, by_loss: bool) -> list[float]:
    if answer is None:
        return []
    place = answer.target_loss if by_loss else answer.total_flops
    return [place.value] if place is not None else []


def _mark_hyperparameter(
    axes: Axes, law: HyperparameterLaw, answer: Prediction | None, known: float | None
) -> None:
    if answer is None:
        return
    for x in _place_x(answer, law.form == "PowerLawOfLoss"):
        low, value, high = _place_y(answer, law)
        curves.star(axes, x, value, (low, high))
        if known is not None:
            axes.plot([x], [known], "x", color=KNOWN, markersize=7, markeredgewidth=1.8, zorder=7)
        if answer.batch_size_given and law.quantity == "batch_size":
            _label(axes, "batch size given", (x, value), (-9, 0), "right")
            continue
        scratch, factor = from_scratch(law, answer)
        if factor != 1.0:
            _arrow(axes, x, scratch.value, value, f"continued run: × {factor:.2f}")


def _arrow(axes: Axes, x: float, start: float, end: float, words: str) -> None:
    """From a run from scratch to a continued one, beside the bar of the interval, with words at its end."""
    axes.plot(
        [x], [start], "o", color=drawing.ACCENT, markerfacecolor="white", markersize=5, zorder=6
    )
    beside = axes.transData + ScaledTranslation(-8 / 72, 0, axes.figure.dpi_scale_trans)
    axes.annotate(
        words,
        (x, end),
        xycoords=beside,
        xytext=(-4, -2 if end < start else 2),
        textcoords="offset points",
        ha="right",
        va="top" if end < start else "bottom",
        fontsize=8,
        color=drawing.ACCENT,
    )
    arrow = {
        "arrowstyle": "->",
        "color": drawing.ACCENT,
        "linewidth": 1.2,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", (x, end), (x, start), xycoords=beside, textcoords=beside, arrowprops=arrow)


def _place_y(answer: Prediction | None, law: HyperparameterLaw) -> list[float]:
    """Low, value and high of the prediction, or nothing."""
    if answer is None:
        return []
    value = getattr(answer, law.quantity)
    return [value.low, value.value, value.high]


# ----------------------------------------------------------------------------------- loss law


def _loss_compute_panels(
    panels: Sequence[Axes], laws: Laws, answer: Prediction | None, initial_loss: float | None
) -> None:
    top, bottom = panels
    law = laws.loss_compute
    top.set_ylabel("loss (nats per token)")
    bottom.set_xlabel("compute (FLOPs)")
    points = [point for point in laws.frontier if point.flops is not None]
    if law.curve is None or not points:
        curves.refused_panel(
            top, bottom, law.refusal.message if law.refusal else "No optimum was found."
        )
        return
    x = np.array([point.flops for point in points], dtype=float)
    y = np.array([point.loss for point in points])
    low, high = curves.x_range(x, _compute_marks(answer))
    curve_x = np.geomspace(low, high, CURVE_POINTS)
    curves.curve_with_band(
        top,
        curve_x,
        law.curve.loss(np.log(curve_x)),
        loss_band(laws, curve_x),
        (float(x.min()), float(x.max())),
    )
    (marks,) = top.plot(x, y, "o", color=drawing.INK, markersize=3.5, zorder=3)
    add_tooltips(marks, [optimum_in_words(point) for point in points])
    curves.scales(top, bottom, (low, high), by_loss=False, positive=False)
    _mark_compute(top, answer, initial_loss)
    curves.residuals_panel(
        bottom, x, 1000 * (y - law.curve.loss(np.log(x))), "residual\n(0.001 nats)", 10.0
    )


def _compute_marks(answer: Prediction | None) -> list[float]:
    if answer is None:
        return []
    before = answer.equivalent_flops
    return [answer.total_flops.value, *([before.value] if before else [])]


def _mark_compute(axes: Axes, answer: Prediction | None, start: float | None) -> None:
    """C_pre at the checkpoint's loss, C_total at the target loss, and C_cpt between them."""
    if answer is None or answer.target_loss is None:
        return
    total, target = answer.total_flops.value, answer.target_loss
    curves.star(axes, total, target.value, (target.low, target.high))
    _label(axes, "$C_{total}$", (total, target.value), (-8, -10), "right")
    before = answer.equivalent_flops
    if before is None or start is None:
        return
    axes.errorbar(
        [before.value],
        [start],
        xerr=[[max(before.value - before.low, 0)], [max(before.high - before.value, 0)]],
        fmt="D",
        color=drawing.ACCENT,
        markersize=6,
        markerfacecolor="white",
        markeredgewidth=1.4,
        capsize=2,
        elinewidth=1,
        zorder=6,
    )
    arrow = {"arrowstyle": "->", "color": drawing.ACCENT, "linewidth": 1, "linestyle": ":"}
    axes.annotate("", (total, start), xytext=(before.value, start), arrowprops=arrow)
    low, high = np.log(axes.get_xlim())
    if np.log(total / before.value) > ROOM_FOR_TWO * (high - low):
        _label(axes, "$C_{pre}$", (before.value, start), (3, 6), "left")
        _label(
            axes, "+ $C_{cpt}$", (float(np.sqrt(before.value * total)), start), (0, 4), "center"
        )
    else:
        room = low + (np.log(before.value) - low) / ROOM_FOR_BOTH
        axes.set_xlim(right=float(np.exp(max(high, room))))
        _label(axes, "$C_{pre}$ + $C_{cpt}$", (before.value, start), (2, 7), "left")


def _label(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], side: str
) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", ha=side, fontsize=8)


def _legend(
    figure: drawing.Figure, laws: Laws, answer: Prediction | None, *, is_known: bool
) -> None:
    level = laws.options.interval
    entries = [
        drawing.key(f"optimum at one loss, {level:.0%} interval", marker="o", markersize=4),
        drawing.key("law within the data", linestyle="-", linewidth=1.6),
        drawing.key("extrapolated", linestyle=(0, (4, 3)), linewidth=1.0),
        drawing.key(f"{level:.0%} band", color=drawing.BAND, linestyle="-", linewidth=7),
    ]
    if answer is not None:
        label = f"prediction, {answer.route} estimate"
        entries.append(drawing.key(label, marker="*", markersize=11, color=drawing.ACCENT))
        if from_scratch(laws.learning_rate, answer)[1] != 1.0:
            open_circle = {"marker": "o", "markersize": 5, "markerfacecolor": "white"}
            entries.append(
                drawing.key("the same for a run from scratch", color=drawing.ACCENT, **open_circle)
            )
        if is_known:
            label = "known optimum of a run from scratch"
            entries.append(
                drawing.key(label, marker="x", markersize=7, markeredgewidth=1.8, color=KNOWN)
            )
    drawing.legend_below(figure, entries)
