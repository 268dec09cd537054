"""How long probes must be: what the laws say at their tokens is compared with what they say at the full budget."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class ShareRefused:
    """Why probes of a share of the budget cannot be judged."""

    refused: engine.Refused
    smallest: float | None
    """A little more than the smallest share of which they can be, to two digits; None if no share helps."""

    @property
    def message(self) -> str:
        """A sentence that says what is wrong."""
        return self.refused.refusals[0].message


def refuse_share(
    laws: engine.Laws,
    query: engine.PredictionQuery,
    share: float,
    flops_of: Callable[[float], float],
) -> ShareRefused | None:
    """Why probes of a share of the query's budget could not be judged once they are trained; None if they could.

    `flops_of` gives the FLOPs of one probe by its share of the budget, up to those of the whole budget.
    """
    short = answer_at(laws, query, flops_of(share))
    if not isinstance(short, engine.Refused):
        return None
    is_too_short = {each.reason for each in short.refusals} == {
        engine.RefusalReason.BUDGET_TOO_SMALL
    }
    return ShareRefused(
        short, _smallest_share(laws, query, share, flops_of) if is_too_short else None
    )


def _smallest_share(
    laws: engine.Laws,
    query: engine.PredictionQuery,
    too_small: float,
    flops_of: Callable[[float], float],
) -> float | None:
    """`too_small` is a share of which probes cannot be judged. None if not even probes of the whole budget can."""
    low, high = too_small, 1.0
    if isinstance(answer_at(laws, query, flops_of(high)), engine.Refused):
        return None
    while high > low * (1.0 + SAME_VALUE):
        middle = math.sqrt(low * high)
        if isinstance(answer_at(laws, query, flops_of(middle)), engine.Refused):
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
