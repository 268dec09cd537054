"""Whether the two routes contradict each other."""

from __future__ import annotations

from collections.abc import Mapping

from isoloss.laws.answer.prediction import Point, PredictionQuery
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Refusal, RefusalReason, Route


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
