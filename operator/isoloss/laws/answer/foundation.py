"""What an answer rests on and what speaks against it: the route, what was refused, and what the sweep cannot show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isoloss.laws.answer.prediction import Point, PredictionQuery
from isoloss.laws.answer.query_refusals import law_figures
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.held_out import FEWEST_SIZES
from isoloss.laws.model import NO_MINIMUM, Refusal, RefusalReason, Route
from isoloss.laws.results import StableRate


def contradicted(laws: Laws) -> Refusal | None:
    """Refuse iso-loss laws if all runs together show no optimum inside the grid.

    Single levels then still have a vertex by chance, and those that have one are the wrong sample.
    """
    refusal = laws.surface.refusal
    if refusal is None or refusal.reason not in NO_MINIMUM:
        return None
    return Refusal(
        RefusalReason.LAW_REFUSED,
        f"Some loss levels have an optimum, but all runs taken together have none: {refusal.message}",
        law_figures(refusal),
    )


def foundation(laws: Laws, route: Route) -> tuple[str, ...]:
    """Sentences about an answer by `route`; none if both routes stand and sizes were compared."""
    found = [] if route == "fixed-batch" else [*_missing_route(laws, route)]
    if route == "surface":
        found += [
            f"The trend of the best {name.replace('_', ' ')} over sizes is within their scatter, and without it the largest "
            "size was predicted better: half of it is kept."
            for name in laws.surface.halved_trends
        ]
    sizes = len(laws.data.sizes)
    if 0 < sizes < FEWEST_SIZES:
        found.append(
            f"With {sizes} {'size' if sizes == 1 else 'sizes'}, size-to-size scatter cannot be estimated; the intervals assume "
            "as much as published sweeps show."
        )
    return tuple(found)


def _missing_route(laws: Laws, route: Route) -> list[str]:
    if route == "surface":
        parts: tuple[tuple[str, Refusal | None], ...] = (
            ("learning rate's law", laws.learning_rate.refusal),
            ("batch size's law", laws.batch_size.refusal),
            ("loss-compute law", laws.loss_compute.refusal),
        )
        answers = "The joint surface alone answers"
    else:
        parts = (("joint surface", laws.surface.refusal),)
        answers = "The iso-loss laws alone answer"
    by_reason: dict[tuple[str, str], list[str]] = {}
    for words, refusal in parts:
        if refusal is not None:
            by_reason.setdefault((refusal.reason.value, refusal.message), []).append(words)
    return [
        f"{answers}; refused: {', '.join(words)} ({reason}: {message})"
        for (reason, message), words in by_reason.items()
    ]


def disagreements(routes: Mapping[Route, Point]) -> list[str]:
    """A sentence for each hyperparameter on which the routes' intervals have nothing in common."""
    found = []
    if len(routes) == 2:
        one, other = routes["iso-loss"], routes["surface"]
        for words, a, b in (
            ("learning rate", one.learning_rate, other.learning_rate),
            ("batch size", one.batch_size, other.batch_size),
        ):
            if a.high < b.low or b.high < a.low:
                found.append(
                    f"The two routes disagree on the {words} beyond their intervals: the iso-loss laws give "
                    f"{a.value:.3g} [{a.low:.3g}, {a.high:.3g}], the joint surface "
                    f"{b.value:.3g} [{b.low:.3g}, {b.high:.3g}]."
                )
    return found


def routes_disagree(
    laws: Laws, query: PredictionQuery, routes: Mapping[Route, Point]
) -> Refusal | None:
    """Refuse if both routes answer one question and neither can be believed.

    At a given size they answer two: the iso-loss laws are of the size that needs the least compute. Nor is
    there a choice if only one route has the form that was asked for.
    """
    if query.params is not None or laws.options.form == "LinearInLogCompute":
        return None
    found = disagreements(routes)
    if not found:
        return None
    return Refusal(
        RefusalReason.ROUTES_DISAGREE,
        f"{' '.join(found)} Neither is believed: give the target's size, which the joint surface alone knows of, or train "
        "more sizes or points near the optimum.",
        {"disagreements": len(found)},
    )


def above_stable_rates(laws: Laws, query: PredictionQuery, answer: Point) -> list[str]:
    """A sentence if it is above every learning rate that runs of the sweep survived nearby, and a higher one diverged there.

    A parabola through the runs that did not diverge knows nothing of the edge behind them, and its minimum can lie beyond it.
    """
    nearest = _nearest(laws, query, answer)
    if (
        nearest is None
        or nearest.diverged is None
        or answer.learning_rate.value <= nearest.highest
    ):
        return []
    return [
        f"The answer, {answer.learning_rate.value:.3g}, is above every learning rate that was stable nearby: with "
        f"{nearest.params:.3g} parameters and a batch size of {nearest.batch_size:g} sequences, {nearest.highest:.3g} did not "
        f"diverge and {nearest.diverged:.3g} did. Use {nearest.highest:.3g}, or train one between them first."
    ]


def _nearest(laws: Laws, query: PredictionQuery, answer: Point) -> StableRate | None:
    """Of the nearest size, the nearest batch size; of the largest size if the question names none."""
    rates = laws.data.stable_rates
    if not rates:
        return None
    params = query.params or max(rate.params for rate in rates)
    return min(
        rates,
        key=lambda rate: (
            abs(np.log(rate.params / params)),
            abs(np.log(rate.batch_size / answer.batch_size.value)),
        ),
    )
