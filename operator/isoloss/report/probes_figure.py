"""The losses of probes over learning rate and over batch size, with the answer and the refined one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from matplotlib.axes import Axes

from isoloss import formatting
from isoloss.laws import Interval
from isoloss.report.content import Table
from isoloss.report.drawing import (
    ACCENT,
    BAND,
    INK,
    Figure,
    grid_axis,
    key,
    legend_below,
    note,
    style,
)
from isoloss.report.inline_svg import told
from isoloss.report.probed import Probed, ProbedPlace

CROSSES_AT = 0.97
"""Share of the panel's height."""
ALIKE = 1.01
"""Factor up to which two learning rates or batch sizes are on one line through the answer."""
_rate, _batch = attrgetter("learning_rate"), attrgetter("batch_size")
"""Of a place."""


@style()
def probes_figure(probed: Probed) -> Figure:
    """A panel over learning rate at the answer's batch size, and one over batch size at its learning rate."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    rates, batches = figure.subplots(1, 2, sharey=True)
    _panel(rates, probed, _rate, _batch, probed.learning_rate)
    _panel(batches, probed, _batch, _rate, probed.batch_size)
    rates.set_xlabel("learning rate")
    batches.set_xlabel(f"batch size ({probed.unit})")
    rates.set_ylabel("loss (nats per token)")
    _legend(figure, probed)
    return figure


def probes_table(probed: Probed) -> Table:
    """Every place with its loss, the answer first."""
    rows = tuple(
        (
            formatting.learning_rate(place.learning_rate),
            formatting.batch_size(place.batch_size),
            place.state,
            formatting.loss(place.loss),
            "" if place.standard_error is None else formatting.number(place.standard_error, 2),
        )
        for place in probed.places
    )
    heads = ("learning rate", f"batch size ({probed.unit})", "state", "loss", "standard error")
    return Table(heads, rows, frozenset({0, 1, 3, 4}))


def _panel(
    axes: Axes,
    probed: Probed,
    along: Callable[[ProbedPlace], float],
    across: Callable[[ProbedPlace], float],
    refined: Interval | None,
) -> None:
    answer = probed.places[0]
    line = [place for place in probed.places if _is_alike(across(place), across(answer))]
    axes.set_xscale("log")
    values = sorted(along(place) for place in line)
    reach = [*values, *((refined.value,) if refined else ())]
    axes.set_xlim(min(reach) / 1.3, max(reach) * 1.3)
    grid_axis(axes.xaxis, values, learning_rates=along is _rate)
    _crosses(axes, [place for place in line if place.diverged], along)
    shown = sorted((p for p in line if p.loss is not None and not p.diverged), key=along)
    if not shown:
        note(axes, "no probe has a loss")
        return
    losses = [place.loss or 0.0 for place in shown]
    errors = [place.standard_error or 0.0 for place in shown]
    axes.plot([along(place) for place in shown], losses, color=INK, linewidth=0.6)
    marks = axes.errorbar(
        [along(place) for place in shown],
        losses,
        yerr=errors if any(errors) else None,
        fmt="o",
        markersize=5,
        capsize=3,
        color=INK,
    )[0]
    told(marks, [_in_words(place) for place in shown])
    axes.axvline(along(answer), color=INK, linestyle="--", linewidth=0.9)
    if refined is not None:
        axes.axvspan(refined.low, refined.high, color=BAND, zorder=0)
        axes.axvline(refined.value, color=ACCENT, linestyle="-.", linewidth=1.3)


def _crosses(
    axes: Axes, places: Sequence[ProbedPlace], along: Callable[[ProbedPlace], float]
) -> None:
    """At the top of the panel: where training diverged, no loss says how bad the place is."""
    if not places:
        return
    (marks,) = axes.plot(
        [along(place) for place in places],
        [CROSSES_AT] * len(places),
        "x",
        color=INK,
        markersize=6,
        transform=axes.get_xaxis_transform(),
        zorder=3,
    )
    told(marks, [_in_words(place) for place in places])


def _in_words(place: ProbedPlace) -> str:
    return (
        f"learning rate {formatting.learning_rate(place.learning_rate)}, "
        f"batch size {formatting.batch_size(place.batch_size)}\n"
        f"{place.state}" + ("" if place.loss is None else f", loss {formatting.loss(place.loss)}")
    )


def _is_alike(one: float, other: float) -> bool:
    return max(one, other) <= ALIKE * min(one, other)


def _legend(figure: Figure, probed: Probed) -> None:
    handles = [
        key("probe, one standard error", marker="o", markersize=5),
        key("the laws' answer", linestyle="--"),
    ]
    if any(place.diverged for place in probed.places):
        handles.insert(1, key("diverged", marker="x", markersize=6))
    if probed.learning_rate is not None:
        handles.append(key("refined answer and its interval", linestyle="-.", color=ACCENT))
    legend_below(figure, handles)
