"""How far from its data a sweep's laws are asked.

A distance widens the interval, so that what an answer is expected to waste decides: beyond REACH of the data one is refused that is expected
to waste more than a published law, which costs nothing. What is farther than proxies ever are from a target is
probably in another unit, and refused whatever the laws say.

Distances are logarithmic. REACH is SPANS times what the data themselves span, but at least a factor of NEAR, and at most one of
FAR_BELOW or FAR_ABOVE.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isoloss.formatting import count
from isoloss.laws.answer.question import Question
from isoloss.laws.answer.rounding import rounded
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Refusal, RefusalReason
from isoloss.laws.prediction import Point
from isoloss.usual import PUBLISHED_WASTE

SPANS = 3.0
NEAR, FAR_BELOW, FAR_ABOVE = 10.0, 100.0, 1000.0
UNIT_ABOVE, UNIT_ABOVE_COMPUTE = 1e4, 1e7
"""Factors over the data beyond which a size or tokens, or compute, are probably in another unit."""
LARGEST_RATE = 0.1
"""Learning rates from here on are refused, unless the sweep itself tried as large ones."""
SMALLEST_BATCH = 0.5
"""Sequences."""
CHECK_UNIT = " Check its unit."
USUAL_TOKENS = 20
"""Tokens for each parameter of a proxy that is given as an example (Hoffmann et al. 2203.15556)."""
FEWEST_PARAMS = 1e4
"""Smaller counts are probably in millions or billions."""
FEWEST_STEPS = 30
"""Optimizer steps of a continued run; a budget of fewer is probably in another unit, as in a table of runs."""


@dataclass(frozen=True)
class Asked:
    """One quantity of a question and its range in the data."""

    words: str
    value: float
    smallest: float
    largest: float
    unit: str
    advice: str = CHECK_UNIT

    def beyond_reach(self) -> Refusal | None:
        """So far below or above the data that an answer has to be worth it."""
        reach = (self.largest / self.smallest) ** SPANS
        most = FAR_ABOVE if self.unit == "FLOPs" else float(np.clip(reach, NEAR, FAR_ABOVE))
        return self._beyond(float(np.clip(reach, NEAR, FAR_BELOW)), most)

    def refusal(self, above: float | None = None) -> Refusal | None:
        """So far that the unit is likely wrong; `above` replaces the limit of the factor above the data."""
        usual = UNIT_ABOVE_COMPUTE if self.unit == "FLOPs" else UNIT_ABOVE
        return self._beyond(FAR_BELOW, usual if above is None else above)

    def _beyond(self, lower: float, upper: float) -> Refusal | None:
        below, beyond = self.smallest / self.value, self.value / self.largest
        if below <= lower and beyond <= upper:
            return None
        side, factor, most = ("below", below, lower) if below > lower else ("above", beyond, upper)
        return Refusal(
            RefusalReason.EXTRAPOLATION_TOO_FAR,
            f"The {self.words}, {self.value:.3g} {self.unit}, is a factor of {factor:.3g} {side} the "
            f"sweep's range of {self.smallest:.3g} to {self.largest:.3g}; the limit is {most:.3g}."
            + self._what_to_do(side, upper),
            {"value": self.value, "factor": factor, "limit": most, "side": side},
        )

    def _what_to_do(self, side: str, upper: float) -> str:
        if self.unit == "parameters" and self.value < FEWEST_PARAMS:
            return f" Write a size of {self.value:g} billion parameters as {self.value:g}e9."
        if self.advice != CHECK_UNIT:
            return self.advice
        # A proxy nearer to the target also widens the range, of which the reach is SPANS times. The percent is for
        # the rounding.
        if side == "above":
            widened = self.smallest * (self.value / self.smallest) ** (1 / (1 + SPANS))
            least = self.value / UNIT_ABOVE
            if self.unit == "FLOPs":
                least = self.value / min(upper, FAR_ABOVE)
            elif upper < UNIT_ABOVE:
                least = max(self.value / FAR_ABOVE, min(self.value / NEAR, widened))
            proxy = f"larger proxy, of at least {1.01 * least:.3g} {self.unit}"
            if self.unit == "FLOPs":
                params = np.sqrt(1.01 * least / (6 * USUAL_TOKENS))
                proxy += f" (such as {count(params)} parameters on {count(USUAL_TOKENS * params)} tokens)"
        else:
            proxy = f"smaller proxy, of at most {0.99 * self.value * FAR_BELOW:.3g} {self.unit}"
        return f" Train a {proxy}, or check its unit."


def size_refusal(params: float, sizes: Sequence[float]) -> Refusal | None:
    """Refuse a target of so many parameters if it is so far from the sizes of a sweep that its unit is likely wrong; its laws need
    not exist yet."""
    return Asked("target size", params, min(sizes), max(sizes), "parameters").refusal()


def refuse_distance(laws: Laws, question: Question, most: float | None) -> Refusal | None:
    """Refuse a size, compute or tokens so far from the sweep's own that the unit is likely wrong, and compute beyond a limit that
    was given: `most`, else the laws'."""
    limit = most if most is not None else laws.options.max_extrapolation
    for asked in _asked(laws, question):
        refusal = asked.refusal(limit if asked.unit == "FLOPs" else None)
        if refusal is not None:
            return refusal
    return None


def too_far(laws: Laws, question: Question, wasted: float) -> Refusal | None:
    """Refuse an answer far from the sweep that is expected to waste more than a published law: `wasted`, ln D."""
    if wasted <= PUBLISHED_WASTE:
        return None
    found = (asked.beyond_reach() for asked in _asked(laws, question))
    refusal = next((each for each in found if each is not None), None)
    if refusal is None:
        return None
    shares = [1.0 - float(np.exp(-each)) for each in (wasted, PUBLISHED_WASTE)]
    return replace(
        refusal,
        message=f"{refusal.message} At that distance the answer is expected to waste {shares[0]:.0%} of the tokens; a published law, "
        f"which costs nothing, {shares[1]:.0%}.",
        figures={**refusal.figures, "expected_waste": shares[0]},
    )


def _asked(laws: Laws, question: Question) -> Iterator[Asked]:
    data, place = laws.data, question.place
    named = question.log_params is not None
    compute = list(_compute(laws, question))
    # Compute that is too far is what is wrong with a size that stands in for one.
    yield from () if named else compute
    if not named and laws.options.form != "PowerLawOfLoss":
        return  # the form that is linear in ln C knows of no sizes
    if place is not None and data.sizes:
        words, advice = "target size", CHECK_UNIT
        if not named:
            words = "size that was assumed, as none is named"
            advice = " Name the size of your model."
        params = float(np.exp(place[0][0]))
        yield Asked(words, params, min(data.sizes), max(data.sizes), "parameters", advice)
    yield from compute if named else ()
    if place is not None and None not in (data.smallest_tokens, data.largest_tokens):
        tokens = float(np.exp(min(float(place[1][0]), 700.0)))
        yield Asked(
            "token count that the total compute buys at this size",
            tokens,
            data.smallest_tokens or tokens,
            data.largest_tokens or tokens,
            "tokens",
        )


def _compute(laws: Laws, question: Question) -> Iterator[Asked]:
    data = laws.data
    if data.largest_flops is None:
        return
    smallest = data.smallest_flops or data.largest_flops
    if data.smallest_tokens is not None and data.sizes:
        # The frontier may begin late; the runs behind the joint surface began here.
        per_token = laws.surface.flops_per_token_per_param * min(data.sizes)
        smallest = min(smallest, per_token * data.smallest_tokens)
    flops = float(np.exp(min(question.log_flops, 700.0)))
    yield Asked("total compute", flops, smallest, data.largest_flops, "FLOPs")


def implausible(laws: Laws, answer: Point) -> Refusal | None:
    """Refuse a learning rate or batch size that no run can use: the law left the range where it holds."""
    rate, batch = answer.learning_rate.value, answer.batch_size.value
    highest = max(LARGEST_RATE, max(laws.data.learning_rates, default=0.0))
    if rate >= highest and rate > max(laws.data.learning_rates, default=0.0):
        found, limit = f"learning rate {rate:.3g}", f"at most {highest:.3g}"
    elif batch < SMALLEST_BATCH:
        found, limit = f"batch size {batch:.2g} sequences", "at least 1 sequence"
    else:
        return None
    return Refusal(
        RefusalReason.EXTRAPOLATION_TOO_FAR,
        f"The laws give a {found}, which is not plausible ({limit}): the target is too far from the sweep.",
        {"learning_rate": rate, "batch_size": batch},
    )


def too_few_steps(laws: Laws, question: Question, batch_size: float) -> Refusal | None:
    """Refuse a budget of fewer than FEWEST_STEPS steps of its own answer, whose batch size this is, to be rounded; None if
    steps cannot be counted."""
    tokens, most = _most_tokens(laws, question), largest_batch(laws, question)
    given = rounded(batch_size, question.multiple)
    if tokens is None or most is None or given <= most:
        return None
    # The laws' batch size counts sequences of the sweep's own length.
    batch_tokens = given * float(laws.sequence_length or 1)
    budget = (
        f"The budget of {_budget(laws, question, tokens)} is fewer than {FEWEST_STEPS} steps of"
    )
    message = (
        f"{budget} the answer's batch size, {batch_tokens:.3g} tokens: at least {np.ceil(FEWEST_STEPS * batch_tokens):,.0f} "
        "tokens are needed. Check its unit: write 60 billion tokens as 60e9."
    )
    if rounded(batch_size, 1) <= most:
        message = (
            f"{budget} {given:.10g} sequences, to which the best batch size of {batch_size:.4g} is rounded as a multiple of "
            f"{question.multiple:.10g}: round to a smaller multiple."
        )
    return Refusal(
        RefusalReason.BUDGET_TOO_SMALL,
        message,
        {"tokens": tokens, "steps": tokens / batch_tokens, "fewest_steps": FEWEST_STEPS},
    )


def largest_batch(laws: Laws, question: Question) -> float | None:
    """Sequences of a batch with which the budget has FEWEST_STEPS steps; None if steps cannot be counted."""
    tokens = _most_tokens(laws, question)
    if tokens is None or laws.sequence_length is None:
        return None
    return tokens / (FEWEST_STEPS * laws.sequence_length)


def _most_tokens(laws: Laws, question: Question) -> float | None:
    """Tokens of the budget, at the most; None if they cannot be counted.

    Without the target's size those of the smallest that was trained, which no budget gets more steps of.
    """
    per_token, smallest = question.flops_per_token, min(laws.data.sizes, default=None)
    if per_token is None and smallest is not None:
        per_token = laws.surface.flops_per_token_per_param * smallest
    if question.cpt_flops is None or per_token is None:
        return None
    return question.cpt_flops / per_token


def _budget(laws: Laws, question: Question, tokens: float) -> str:
    """The budget in words. Without a size it was given in FLOPs, which can hold tokens by mistake."""
    if question.flops_per_token is not None:
        return f"{tokens:.3g} tokens"
    smallest = f"the sweep's smallest size of {min(laws.data.sizes):.3g} parameters"
    return f"{question.cpt_flops:.3g} FLOPs, {tokens:.3g} tokens even at {smallest},"
