"""The three laws with bands and residuals, and a prediction placed on them.

Left to right: learning rate, batch size, loss over compute; below each, its residuals. Beyond the data
a curve is dashed, because it is an extrapolation there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from isoloss.laws import (
    HyperparameterLaw,
    Laws,
    Optimum,
    Prediction,
)
from isoloss.report.bands import hyperparameter_band, loss_band, outside_of
from isoloss.report.content import any_law, optimum_in_words
from isoloss.report.curves import (
    curve_with_band,
    folded,
    interval_bars,
    keep_readable,
    refused_panel,
    residuals_panel,
    scales,
    star,
    x_range,
    y_ticks,
)
from isoloss.report.drawing import ACCENT, BAND, INK, Figure, key, legend_below, note, style
from isoloss.report.inline_svg import add_tooltips

CURVE_POINTS = 160
ROOM_FOR_TWO = 0.3
"""Share of the axis between C_pre and C_total from which their labels have room next to each other."""


@style()
def plot_laws(
    laws: Laws, prediction: Prediction | None = None, *, initial_loss: float | None = None
) -> Figure:
    """Learning rate and batch size over the loss, and the loss over compute, with bands and residuals.

    A prediction is a star on the curves; with the checkpoint's loss in nats per token, C_pre is marked, too.
    """
    if not any_law(laws):
        return _nothing(laws)
    figure = Figure(figsize=(11.2, 4.9), layout="constrained")
    panels = figure.subplots(2, 3, height_ratios=(3.2, 1), sharex="col", squeeze=False)
    _hyperparameter_panels(panels[:, 0].tolist(), laws, laws.learning_rate, prediction)
    _hyperparameter_panels(panels[:, 1].tolist(), laws, laws.batch_size, prediction)
    _loss_compute_panels(panels[:, 2].tolist(), laws, prediction, initial_loss)
    _legend(figure, laws.options.interval, prediction)
    return figure


def _nothing(laws: Laws) -> Figure:
    """The reasons instead of curves."""
    figure = Figure(figsize=(11.2, 2.2), layout="constrained")
    names = ("learning rate", "batch size", "loss over compute")
    parts = laws.learning_rate, laws.batch_size, laws.loss_compute
    reasons = [part.refusal.message if part.refusal else "" for part in parts]
    for axes, name, reason in zip(figure.subplots(1, 3), names, reasons, strict=True):
        axes.set_title(name, loc="left")
        axes.set_axis_off()
        note(axes, "Refused.\n" + folded(reason))
    return figure


# ------------------------------------------------------------------------------------- f and g


def _hyperparameter_panels(
    panels: Sequence[Axes], laws: Laws, law: HyperparameterLaw, answer: Prediction | None
) -> None:
    top, bottom = panels
    name = "learning rate" if law.quantity == "learning_rate" else "batch size (sequences)"
    by_loss = law.form == "PowerLawOfLoss"
    top.set_ylabel(name)
    bottom.set_xlabel("loss (nats per token)" if by_loss else "compute (FLOPs)")
    points = [point for point in laws.frontier if _value(point, law) is not None]
    x = np.array([point.loss if by_loss else point.flops for point in points], dtype=float)
    y = np.array([_value(point, law) for point in points], dtype=float)
    if law.curve is None or not points:
        refused_panel(top, bottom, law.refusal.message if law.refusal else "No optimum was found.")
        return
    errors = np.array([point.standard_errors.get(law.quantity, 0.0) for point in points])
    marks = interval_bars(top, x, y, errors, laws.options.interval)
    add_tooltips(marks, [optimum_in_words(point) for point in points])
    low, high = x_range(x, _place_x(answer, by_loss))
    curve_x = np.geomspace(low, high, CURVE_POINTS)
    curve, band = hyperparameter_band(laws, law.curve, curve_x)
    curve_with_band(top, curve_x, curve, band, (float(x.min()), float(x.max())))
    scales(top, bottom, (low, high), by_loss, positive=law.quantity == "learning_rate" or by_loss)
    _mark_hyperparameter(top, laws, law, answer)
    keep_readable(top, np.concatenate([y, curve, _place_y(answer, law)]))
    fitted = hyperparameter_band(laws, law.curve, x)[0]
    residuals_panel(bottom, x, 100 * (y / fitted - 1), "residual (%)")
    y_ticks(top, law.quantity == "learning_rate")
    if by_loss:
        top.invert_xaxis()  # training runs from left to right, towards lower loss


def _value(point: Optimum, law: HyperparameterLaw) -> float | None:
    return point.learning_rate if law.quantity == "learning_rate" else point.batch_size


def _place_x(answer: Prediction | None, by_loss: bool) -> list[float]:
    if answer is None:
        return []
    place = answer.target_loss if by_loss else answer.total_flops
    return [place.value] if place is not None else []


def _mark_hyperparameter(
    axes: Axes, laws: Laws, law: HyperparameterLaw, answer: Prediction | None
) -> None:
    by_loss = law.form == "PowerLawOfLoss"
    for x in _place_x(answer, by_loss):
        low, value, high = _place_y(answer, law)
        star(axes, x, value, (low, high))
        words = _remark(laws, law, answer) if answer is not None else ""
        if words:
            # Learning rates fall and batch sizes grow to the right: that corner is free.
            y, side = (0.97, "top") if law.quantity == "learning_rate" else (0.03, "bottom")
            axes.text(0.98, y, words, transform=axes.transAxes, ha="right", va=side, fontsize=8)


def _remark(laws: Laws, law: HyperparameterLaw, answer: Prediction) -> str:
    """What the star needs to be understood; empty: nothing."""
    if answer.batch_size_given and law.quantity == "batch_size":
        return "batch size given"
    outside = outside_of(laws, law, answer)
    if outside is None:
        return ""
    words = "prediction outside the band"
    return f"{words},\nwhich is of runs from scratch" if outside.only_composed() else words


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
        refused_panel(top, bottom, law.refusal.message if law.refusal else "No optimum was found.")
        return
    x = np.array([point.flops for point in points], dtype=float)
    y = np.array([point.loss for point in points])
    low, high = x_range(x, _compute_marks(answer))
    curve_x = np.geomspace(low, high, CURVE_POINTS)
    curve_with_band(
        top,
        curve_x,
        law.curve.loss(np.log(curve_x)),
        loss_band(laws, curve_x),
        (float(x.min()), float(x.max())),
    )
    (marks,) = top.plot(x, y, "o", color=INK, markersize=3.5, zorder=3)
    add_tooltips(marks, [optimum_in_words(point) for point in points])
    scales(top, bottom, (low, high), by_loss=False, positive=False)
    _mark_compute(top, answer, initial_loss)
    residuals_panel(bottom, x, 1000 * (y - law.curve.loss(np.log(x))), "residual\n(0.001 nats)")


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
    star(axes, total, target.value, (target.low, target.high))
    _label(axes, "$C_{total}$", (total, target.value), (-8, -10), "right")
    before = answer.equivalent_flops
    if before is None or start is None:
        return
    axes.errorbar(
        [before.value],
        [start],
        xerr=[[max(before.value - before.low, 0)], [max(before.high - before.value, 0)]],
        fmt="D",
        color=ACCENT,
        markersize=6,
        markerfacecolor="white",
        markeredgewidth=1.4,
        capsize=2,
        elinewidth=1,
        zorder=6,
    )
    arrow = {"arrowstyle": "->", "color": ACCENT, "linewidth": 1, "linestyle": ":"}
    axes.annotate("", (total, start), xytext=(before.value, start), arrowprops=arrow)
    low, high = np.log(axes.get_xlim())
    if np.log(total / before.value) > ROOM_FOR_TWO * (high - low):
        _label(axes, "$C_{pre}$", (before.value, start), (3, 6), "left")
        _label(
            axes, "+ $C_{cpt}$", (float(np.sqrt(before.value * total)), start), (0, 4), "center"
        )
    else:
        _label(axes, "$C_{pre}$ + $C_{cpt}$", (before.value, start), (2, 7), "left")


def _label(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], side: str
) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", ha=side, fontsize=8)


def _legend(figure: Figure, level: float, answer: Prediction | None) -> None:
    entries = [
        key(f"optimum at one loss, {level:.0%} interval", marker="o", markersize=4),
        key("law within the data", linestyle="-", linewidth=1.6),
        key("extrapolated", linestyle=(0, (4, 3)), linewidth=1.0),
        key(f"{level:.0%} band", color=BAND, linestyle="-", linewidth=7),
    ]
    if answer is not None:
        label = f"prediction, {answer.route} estimate"
        entries.append(key(label, marker="*", markersize=11, color=ACCENT))
    legend_below(figure, entries)
