"""What an answer rests on, in words: the route, what was refused, and what the sweep cannot show."""

from __future__ import annotations

from isoloss.laws.answer.query_refusals import law_figures
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.held_out import FEWEST_SIZES
from isoloss.laws.model import NO_MINIMUM, Refusal, RefusalReason, Route


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
    sizes, trend = len(laws.data.sizes), laws.options.size_trend
    if trend is not None and sizes == 1:
        found.append(
            f"The trend over sizes is that of {trend.name} (learning rate ~ N^{trend.learning_rate_exponent:.3g}, batch "
            f"size ~ N^{trend.batch_size_exponent:.3g} at equal tokens), not of this sweep."
        )
    elif trend is not None:
        found.append(
            f"The trend over sizes of {trend.name} was not used: {sizes} sizes show their own."
        )
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
