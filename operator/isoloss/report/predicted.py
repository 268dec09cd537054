"""The words and tables about a prediction: its chain, the alternatives, what its uncertainty costs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from isoloss import formatting
from isoloss import laws as engine
from isoloss.published import PublishedOptimum
from isoloss.report.bands import band_at, from_scratch
from isoloss.report.content import Cells, Table


def unit_of_batches(answer: engine.Prediction, laws_length: int | None) -> str:
    """Sequences, with their length if it is not that of the laws."""
    length = answer.sequence_length
    return "sequences" if length in (None, laws_length) else f"sequences of {length}"


def on_the_laws(answer: engine.Prediction, laws_length: int | None) -> engine.Prediction:
    """The answer in sequences of the laws' length, to be drawn on them."""
    length = answer.sequence_length
    if None in (length, laws_length) or length == laws_length:
        return answer
    assert length is not None and laws_length is not None  # noqa: PT018
    return engine.in_sequences(answer, length, laws_length)


def question_in_words(
    answer: engine.Prediction, initial_loss: float | None, parameters: float | None
) -> str:
    """What was asked: the checkpoint and the planned training, by what is known of them."""
    asked = []
    if parameters:
        asked.append(f"{formatting.count(parameters)} parameters")
    if initial_loss is not None:
        asked.append(f"loss {formatting.number(initial_loss, 4)}")
    if answer.cpt_flops is None:
        asked.append(f"{formatting.flops(answer.total_flops.value)} FLOPs in all")
    elif parameters:
        tokens = formatting.count(answer.cpt_flops / (6.0 * parameters))
        asked.append(f"{tokens} more tokens ({formatting.flops(answer.cpt_flops)} FLOPs)")
    else:
        asked.append(f"{formatting.flops(answer.cpt_flops)} more FLOPs")
    sentence = ", ".join(asked)
    return f"{sentence[0].upper()}{sentence[1:]}"


def prediction_facts(
    answer: engine.Prediction, initial_loss: float | None, unit: str = "sequences"
) -> tuple[Cells, ...]:
    """(name, value) pairs of the answer, in order of computation; `unit` is that of its batch sizes."""
    within, far = answer.affordable, answer.extrapolation
    tolerance = "" if within is None else formatting.number(within.tolerance, 2)
    raw = None if answer.batch_size_given else answer.batch_size_raw
    rows = (
        ("initial loss (nats per token)", formatting.loss(initial_loss)),
        (
            "equivalent pre-training compute C_pre (FLOPs)",
            formatting.interval(answer.equivalent_flops, formatting.flops),
        ),
        ("planned compute C_cpt (FLOPs)", formatting.flops(answer.cpt_flops)),
        ("total effective compute C_total (FLOPs)", engine.total_flops_text(answer)),
        (
            "target loss (nats per token)",
            formatting.interval(answer.target_loss, formatting.loss),
        ),
        (
            "batch size (tokens)",
            engine.batch_size_text(answer, answer.batch_size_tokens, formatting.count),
        ),
        (f"batch size before rounding ({unit})", formatting.number(raw, 4)),
        (
            "what this batch size costs (nats over the best one)",
            formatting.interval(answer.batch_size_cost, partial(formatting.number, digits=2)),
        ),
        (
            f"batch sizes within {tolerance} nats ({unit})",
            _affordable(answer),
        ),
        ("expected to lose", engine.regret_text(answer)),
        ("estimate", ROUTES[answer.route]),
        (
            "extrapolation",
            f"{formatting.number(far.compute_factor, 2)} × the largest compute of the sweep",
        ),
    )
    return tuple((name, text) for name, text in rows if text)


def _affordable(answer: engine.Prediction) -> str:
    within = answer.affordable
    if within is None:
        return ""
    smallest, largest = map(formatting.batch_size, (within.smallest, within.largest))
    fewer = " or fewer" if within.is_open_below else ""
    more = " or more" if within.is_open_above else ""
    return f"{smallest}{fewer} to {largest}{more}"


def alternatives_table(
    answer: engine.Prediction, opinions: Sequence[PublishedOptimum], laws_length: int | None
) -> Table:
    """The best pair, the variants and the published laws, to compare with the answer, in its sequences."""
    sequence_length = answer.sequence_length or laws_length
    batches = f"batch size ({unit_of_batches(answer, laws_length)})"
    points: Mapping[str, engine.Point] = {
        **({} if answer.best is None else {"best pair": answer.best}),
        **{f"variant {name}: {_VARIANTS.get(name, '')}": p for name, p in answer.variants.items()},
    }
    rows = [
        (
            name,
            formatting.interval(point.learning_rate, formatting.learning_rate),
            engine.batch_size_text(answer, point.batch_size),
            formatting.flops(point.total_flops),
        )
        for name, point in points.items()
    ]
    rows += [
        (
            f"published law {item.name}",
            formatting.learning_rate(item.learning_rate),
            formatting.batch_size(item.batch_size(sequence_length)) if sequence_length else "",
            formatting.flops(answer.total_flops.value),
        )
        for item in opinions
    ]
    heads = ("estimate", "learning rate", batches, "at C_total (FLOPs)")
    return Table(heads, tuple(rows), frozenset({1, 2, 3}))


def outside_their_data(
    answer: engine.Prediction, opinions: Sequence[PublishedOptimum], laws_length: int | None
) -> tuple[str, ...]:
    """A sentence for each published law that warns of itself here: the reason first, then what it gives."""
    length = answer.sequence_length or laws_length
    return tuple(
        f"{'; '.join(item.warnings)}. It gives {formatting.learning_rate(item.learning_rate)}"
        + (f" and {formatting.batch_size(item.batch_size(length))} sequences." if length else ".")
        for item in opinions
        if item.warnings
    )


ROUTES = {
    "iso-loss": "iso-loss laws",
    "surface": "joint surface",
    "fixed-batch": "learning rate at that batch size",
}
_VARIANTS = {
    "A": "without the checkpoint's past",
    "B": "C_pre from the raw pre-training tokens",
    "paper": "what a run from scratch of C_total wants",
    "measured": "lower learning rate the more compute lies in the past",
}


# --------------------------------------------------------------------------------- uncertainty


def interval_costs(laws: engine.Laws, answer: engine.Prediction) -> Table | None:
    """What training at an end of an interval would cost, were the answer the optimum.

    By the curvature H of the joint surface: 0.5 d' H d of the tokens' logarithm, d the distance in
    (ln LR, ln B); in nats by engine.loss_slope. A given batch size has no ends. None without a joint surface.
    """
    curvature = laws.surface.curvature
    if curvature is None:
        return None
    slope = engine.loss_slope(laws, float(np.log(answer.total_flops.value)))
    rows = []
    quantities = [("learning rate", answer.learning_rate, formatting.learning_rate)]
    if not answer.batch_size_given:
        size = replace(answer.batch_size, value=answer.batch_size_raw)
        quantities.append(("batch size", size, formatting.batch_size))
    for k, (name, interval, write) in enumerate(quantities):
        for end in (interval.low, interval.high):
            wasted = 0.5 * float(curvature[k, k]) * float(np.log(end / interval.value)) ** 2
            share = float(np.expm1(wasted))
            more = formatting.flops(share * answer.total_flops.value)
            loss = formatting.number(slope * wasted, 2)
            rows.append((f"{name} {write(end)}", f"{100 * share:.2g}%", more, loss))
    heads = ("at", "more tokens", "more compute (FLOPs)", "more loss (nats per token)")
    return Table(heads, tuple(rows), frozenset({1, 2, 3}))


def disagreements(laws: engine.Laws, answer: engine.Prediction) -> tuple[str, ...]:
    """Sentences where two estimates of a run from scratch differ: the interval of the one behind the answer, and the band
    of the iso-loss law."""
    drawn = on_the_laws(answer, laws.sequence_length)
    unit = "" if drawn is answer else f" sequences of {laws.sequence_length}"
    found = []
    for law, write, of in (
        (laws.learning_rate, formatting.learning_rate, ""),
        (laws.batch_size, formatting.batch_size, unit),
    ):
        given = answer.batch_size_given and law.quantity == "batch_size"
        scratch, band = from_scratch(law, drawn)[0], band_at(laws, law, drawn)
        if given or band is None or (band[0] <= scratch.high and scratch.low <= band[1]):
            continue
        ends = [write(end) for end in (scratch.low, scratch.high, *band)]
        found.append(
            f"Two estimates of the {law.quantity.replace('_', ' ')} of a run from scratch differ: {_SOURCES[answer.route]} "
            f"{ends[0]} to {ends[1]}{of}, the iso-loss law {ends[2]} to {ends[3]}."
        )
    return tuple(found)


_SOURCES = {
    "iso-loss": "the iso-loss laws give",
    "surface": "the joint surface gives",
    "fixed-batch": "the law of the learning rate at that batch size gives",
}
