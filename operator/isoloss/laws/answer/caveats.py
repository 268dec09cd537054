"""What an answer rests on and what speaks against it, in sentences."""

import numpy as np

from isoloss.laws.answer.question import Question
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Route
from isoloss.laws.prediction import Point
from isoloss.laws.results import StableRate
from isoloss.laws.surface.estimate import FEWEST_SIZES

FROM_SCRATCH = (
    "The total compute was given: the answer is that of a run from scratch. Training a checkpoint further wants a lower "
    "learning rate and a larger batch size: ask with its initial loss and its budget in place of the total."
)


def assumptions(laws: Laws, route: Route) -> tuple[str, ...]:
    """What the sweep itself cannot show."""
    found = []
    if route == "surface":
        found += [
            f"The {name.replace('_', ' ')}'s trend over sizes may be noise (without it the largest size was predicted better), so "
            "only half of it is applied."
            for name in laws.surface.halved_trends
        ]
        if laws.options.form == "LinearInLogCompute":
            found.append(
                "The iso-loss laws were refused, and only they have the form LinearInLogCompute. The joint surface answers instead: "
                "its optima are power laws of size and tokens."
            )
    sizes = len(laws.data.sizes)
    if 0 < sizes < FEWEST_SIZES:
        found.append(
            f"With {sizes} {'size' if sizes == 1 else 'sizes'}, size-to-size scatter cannot be estimated; the intervals assume "
            "as much as published sweeps show."
        )
    return tuple(found)


def size_answered_for(laws: Laws, question: Question) -> list[str]:
    """The size that stands in for one that was not given, and the one that the given FLOPs per token are of."""
    if question.log_params is not None or question.place is None:
        return []
    params, tokens = (float(np.exp(at[0])) for at in question.place)
    sentence = (
        f"No target size was given: the answer is for {params:.3g} parameters and {tokens:.3g} tokens, the ratio of the two that "
        "needs the least compute in this sweep."
    )
    given, total = question.flops_per_token, float(np.exp(question.log_flops))
    if given is None:
        return [f"{sentence} Name the size of your model if it is another."]
    own = given / laws.surface.flops_per_token_per_param
    return [
        f"{sentence} The given {given:.3g} FLOPs per token fit about {own:.3g} parameters, trained on "
        f"{total / given:.3g} tokens: give the size of your model for an answer at it."
    ]


def above_stable_rates(laws: Laws, question: Question, answer: Point) -> list[str]:
    """A sentence if it is above every learning rate that runs of the sweep survived nearby, and a higher one diverged there.

    A parabola through the runs that did not diverge knows nothing of the edge behind them, and its minimum can lie beyond it.
    """
    nearest = _nearest(laws, question, answer)
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


def _nearest(laws: Laws, question: Question, answer: Point) -> StableRate | None:
    """Of the nearest size, the nearest batch size; of the largest size if the question names none."""
    rates = laws.data.stable_rates
    if not rates:
        return None
    log_params = question.log_params
    if log_params is None:
        log_params = float(np.log(max(rate.params for rate in rates)))
    return min(
        rates,
        key=lambda rate: (
            abs(np.log(rate.params) - log_params),
            abs(np.log(rate.batch_size / answer.batch_size.value)),
        ),
    )
