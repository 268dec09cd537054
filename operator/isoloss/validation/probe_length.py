"""How long probes must be: what the laws say at their tokens is compared with what they say at the full budget."""

import math
from dataclasses import replace

from isoloss import laws as engine
from isoloss.usual import SAME_VALUE


def answer_at(
    laws: engine.Laws, query: engine.PredictionQuery, flops: float
) -> engine.Prediction | engine.Refused:
    """The laws' answer for a budget of so many FLOPs in place of the query's, unrounded; what is refused is said of probes."""
    # Rounding must not make two questions of one: the best pair moves, or the best learning rate at one batch size.
    plain = replace(query, batch_size_tolerance=None, round_to=1, cpt_flops=flops, cpt_tokens=None)
    answer = engine.predict(laws, plain)
    if isinstance(answer, engine.Refused):
        return replace(answer, refusals=tuple(_of_probes(each) for each in answer.refusals))
    return answer


def smallest_share(
    laws: engine.Laws, query: engine.PredictionQuery, budget_flops: float, refused: float
) -> float | None:
    """A little more than the smallest share of the budget of which probes can be judged, to two digits, where those of a share
    `refused` cannot. None if not even probes of the whole budget can."""
    low, high = refused, 1.0
    if isinstance(answer_at(laws, query, budget_flops), engine.Refused):
        return None
    while high > low * (1.0 + SAME_VALUE):
        middle = math.sqrt(low * high)
        if isinstance(answer_at(laws, query, middle * budget_flops), engine.Refused):
            low = middle
        else:
            high = middle
    return min(_rounded_up(high), 1.0)


def _rounded_up(share: float) -> float:
    """To two digits."""
    unit = 10.0 ** (math.floor(math.log10(share)) - 1)
    return math.ceil(share / unit) * unit


def _of_probes(refusal: engine.Refusal) -> engine.Refusal:
    """The refusal with its words about the budget said of the probes, whose FLOPs they are."""
    figures = refusal.figures
    if refusal.reason is not engine.RefusalReason.BUDGET_TOO_SMALL or "steps" not in figures:
        return refusal
    tokens, steps, fewest = (float(figures[key]) for key in ("tokens", "steps", "fewest_steps"))
    return replace(
        refusal,
        message=f"Probes of {tokens:.3g} tokens are {steps:.2g} steps of the best batch size there; at least "
        f"{fewest:.0f} are needed: train longer ones, of a larger share of the budget.",
    )
