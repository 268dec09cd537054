"""The answer and its validation: what missing the learning rate or the batch size is expected to cost, and what runs around
the answer lost.

Everything is relative to the answer: differences of a few thousandths of a nat decide.
"""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import NormalDist

import numpy as np
from matplotlib.axes import Axes

from isoloss import formatting
from isoloss.laws import Interval, Laws, Prediction, loss_curvature
from isoloss.report import drawing
from isoloss.report.content import Table
from isoloss.report.inline_svg import add_tooltips
from isoloss.report.probed import Probed, ProbedPlace

CROSSES_AT = 0.95
"""Share of the panel's height."""
ALIKE = 1.01
"""Factor up to which two learning rates or batch sizes are on one line through the answer."""
SHOWN = 2.0
"""A panel reaches from the answer to this factor on both sides, and further if the interval or a run does."""
_rate, _batch = attrgetter("learning_rate"), attrgetter("batch_size")
"""Of a place, or of a prediction."""


@drawing.style()
def answer_figure(laws: Laws, answer: Prediction, probed: Probed | None = None) -> drawing.Figure:
    """A panel over learning rate at the answer's batch size, and one over batch size at its learning rate, unless that
    was given. `answer` is in sequences of the laws' length."""
    curvature = np.diag(loss_curvature(laws, float(np.log(answer.total_flops.value))))
    kinds = [(_rate, _batch, "learning rate")]
    if not answer.batch_size_given:
        unit = "sequences" if probed is None else probed.unit
        kinds.append((_batch, _rate, f"batch size ({unit})"))
    figure = drawing.Figure(figsize=(4.3 * len(kinds), 3.2), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    level = answer.interval_level
    for axes, (along, across, name), along_axis in zip(panels, kinds, curvature, strict=False):
        refined = None
        if probed is not None:
            refined = probed.learning_rate if along is _rate else probed.batch_size
        places = _line(probed, along, across)
        _panel(axes, along(answer), float(along_axis), places, refined, along, level)
        if probed is not None:
            axes.axhline(
                -probed.tolerance, color=drawing.INK, linestyle=(0, (1, 2)), linewidth=1.1
            )
        axes.set_xlabel(name)
    panels[0].set_ylabel("loss above the answer's (nats)")
    _legend(figure, probed, level)
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


def _line(
    probed: Probed | None,
    along: Callable[[ProbedPlace], float],
    across: Callable[[ProbedPlace], float],
) -> list[ProbedPlace]:
    """The answer's place, and those that differ from it in one setting alone."""
    if probed is None:
        return []
    first = probed.places[0]
    alike = across(first) / ALIKE, across(first) * ALIKE
    others = (place for place in probed.places[1:] if alike[0] <= across(place) <= alike[1])
    return [first, *sorted(others, key=along)]


def _panel(
    axes: Axes,
    answer: Interval,
    curvature: float,
    places: Sequence[ProbedPlace],
    refined: Interval | None,
    along: Callable[[ProbedPlace], float],
    level: float,
) -> None:
    values = [along(place) for place in places]
    reach = [answer.value / SHOWN, answer.value * SHOWN, answer.low, answer.high, *values]
    low, high = min(reach) / 1.1, max(reach) * 1.1
    x = np.geomspace(low, high, 120)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.axvspan(answer.low, answer.high, color=drawing.BAND, linewidth=0, zorder=0)
    expected = 0.5 * curvature * np.log(x / answer.value) ** 2
    axes.plot(x, expected, color=drawing.INK, linewidth=1.4)
    axes.axhline(0, color=drawing.SOFT, linewidth=0.6, zorder=1)
    axes.plot(
        [answer.value],
        [0.0],
        "*",
        color=drawing.ACCENT,
        markersize=12,
        markeredgecolor="white",
        markeredgewidth=0.6,
        zorder=6,
    )
    if refined is not None:
        axes.axvline(refined.value, color=drawing.ACCENT, linestyle="-.", linewidth=1.3)
    _dots(axes, places, along, level)
    _crosses(axes, [place for place in places if place.diverged], along)
    if values:
        drawing.grid_axis(axes.xaxis, values, learning_rates=along is _rate)
    else:
        write = formatting.learning_rate if along is _rate else formatting.batch_size
        drawing.log_ticks(axes.xaxis, low, high, write)


def _dots(
    axes: Axes, places: Sequence[ProbedPlace], along: Callable[[ProbedPlace], float], level: float
) -> None:
    """Losses less that at the answer, with the interval of the difference at `level`."""
    if not places or places[0].loss is None or places[0].diverged:
        return
    own = places[0].loss
    shown = [place for place in places[1:] if place.loss is not None and not place.diverged]
    if not shown:
        return
    spread = math.sqrt(2.0) * NormalDist().inv_cdf((1.0 + level) / 2.0)
    errors = [spread * (place.standard_error or 0.0) for place in shown]
    marks = axes.errorbar(
        [along(place) for place in shown],
        [(place.loss or own) - own for place in shown],
        yerr=errors if any(errors) else None,
        fmt="o",
        markersize=5,
        capsize=3,
        elinewidth=0.9,
        color=drawing.INK,
        zorder=4,
    )[0]
    add_tooltips(marks, [_in_words(place, own) for place in shown])


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
        color=drawing.INK,
        markersize=6,
        transform=axes.get_xaxis_transform(),
        zorder=3,
    )
    add_tooltips(marks, [_in_words(place) for place in places])


def _in_words(place: ProbedPlace, own: float | None = None) -> str:
    loss = "" if place.loss is None else f", loss {formatting.loss(place.loss)}"
    above = (
        "" if own is None or place.loss is None else f" ({place.loss - own:+.4f} of the answer's)"
    )
    return (
        f"learning rate {formatting.learning_rate(place.learning_rate)}, "
        f"batch size {formatting.batch_size(place.batch_size)}\n{place.state}{loss}{above}"
    )


def _legend(figure: drawing.Figure, probed: Probed | None, level: float) -> None:
    handles = [
        drawing.key("answer", marker="*", markersize=11, color=drawing.ACCENT),
        drawing.key(f"its {level:.0%} interval", color=drawing.BAND, linestyle="-", linewidth=7),
        drawing.key("expected cost of missing it", linestyle="-", linewidth=1.4),
    ]
    if probed is not None:
        label = "lower than the answer by the tolerance of its loss"
        handles.append(drawing.key(label, linestyle=(0, (1, 2)), linewidth=1.1))
        label = f"validation run, {level:.0%} interval of the difference"
        handles.append(drawing.key(label, marker="o", markersize=5))
        if any(place.diverged for place in probed.places):
            handles.append(drawing.key("diverged", marker="x", markersize=6))
        if probed.learning_rate is not None:
            handles.append(
                drawing.key("laws and validation together", linestyle="-.", color=drawing.ACCENT)
            )
    drawing.legend_below(figure, handles)
