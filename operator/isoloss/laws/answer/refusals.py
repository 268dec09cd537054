"""Why a question is not answered: reasons that need no arithmetic, and how far from its data a sweep's laws are asked.

A distance widens the interval, so that what an answer is expected to waste decides: beyond REACH of the data one is refused that is expected
to waste more than a published law, which costs nothing. What is farther than proxies ever are from a target is
probably in another unit, and refused whatever the laws say.

Distances are logarithmic. REACH is SPANS times what the data themselves span, but at least a factor of NEAR, and at most one of
FAR_BELOW or FAR_ABOVE.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from isoloss.formatting import count
from isoloss.laws.answer import optimum
from isoloss.laws.answer.batch_sizes import rounded
from isoloss.laws.answer.question import Question
from isoloss.laws.arrays import LARGEST_LOG
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Refusal, RefusalReason
from isoloss.laws.prediction import Point, PredictionQuery, Refused
from isoloss.laws.refusals import law_figures
from isoloss.laws.results import LossComputeLaw
from isoloss.usual import (
    FEWEST_STEPS,
    LARGEST_LOSS,
    LARGEST_RATE,
    LARGEST_UNSEEN_SHARE,
    PUBLISHED_WASTE,
    USUAL_BYTES_PER_TOKEN,
    USUAL_TOKENS,
)


def refuse_query(laws: Laws, query: PredictionQuery, budget: float | None) -> list[Refusal]:
    """Reasons that need no arithmetic; `budget` is C_cpt, None if the total was given."""
    if laws.status == "refused" and query.batch_size is None:
        if laws.only_batch_size is not None:
            return [_one_batch_size(laws.only_batch_size)]
        return [
            Refusal(RefusalReason.LAW_REFUSED, r.message, law_figures(r)) for r in laws.refusals
        ]
    refusals = []
    if None not in (query.tokenizer, laws.tokenizer) and query.tokenizer != laws.tokenizer:
        refusals.append(
            Refusal(
                RefusalReason.MIXED_TOKENIZERS,
                f"The checkpoint's tokenizer is {query.tokenizer}, that of the laws is {laws.tokenizer}: their "
                "losses per token cannot be compared.",
                {"checkpoint": str(query.tokenizer), "laws": str(laws.tokenizer)},
            )
        )
    if laws.started_from == "Checkpoints":
        return refusals  # of the initial loss nothing is asked
    curve = laws.loss_compute
    if query.total_flops is None and curve.refusal is not None:
        refusals.append(
            Refusal(
                RefusalReason.LAW_REFUSED,
                f"There is no loss-compute law: {curve.refusal.message}",
                {"law_reason": curve.refusal.reason.value},
            )
        )
    loss = query.initial_loss
    if loss is not None and curve.irreducible_loss is not None and loss <= curve.irreducible_loss:
        refusals.append(_below_irreducible(laws, curve, loss))
    past = unseen_past(laws, query, budget)
    if past is not None and (
        past.share > LARGEST_UNSEEN_SHARE or _is_far_above(laws, loss or 0.0)
    ):
        refusals.append(_above_all_seen(laws, query, past))
    return refusals


class UnseenPast(NamedTuple):
    """The bound on C_pre of a checkpoint whose loss is above all that the sweep has seen."""

    most: float
    """FLOPs at which runs from scratch had the highest loss seen."""
    share: float
    """C_pre's share of the total compute, at most."""


def unseen_past(laws: Laws, query: PredictionQuery, budget: float | None) -> UnseenPast | None:
    """None if the initial loss is within the sweep's, or nothing can be said of it."""
    curve, highest, loss = laws.loss_compute.curve, laws.data.highest_loss, query.initial_loss
    if None in (curve, highest, loss) or query.total_flops is not None:
        return None
    if laws.started_from == "Checkpoints":
        return None
    assert curve is not None and highest is not None and loss is not None  # noqa: PT018
    if loss <= highest:
        return None
    most = float(np.exp(min(float(curve.log_x(highest)), LARGEST_LOG)))
    return UnseenPast(most, most / (most + (budget or 0.0)))


def unseen_sentences(laws: Laws, query: PredictionQuery, budget: float | None) -> list[str]:
    """What is known of C_pre when the initial loss is above all that the sweep has seen."""
    past, loss = unseen_past(laws, query, budget), query.initial_loss
    if past is None or loss is None:
        return []
    return [
        f"The initial loss {loss:.4g} is above every loss of the sweep ({laws.data.highest_loss:.4g}): C_pre is at most "
        f"{past.most:.2g} FLOPs, {past.share:.1%} of the total.{other_units(laws, loss)}"
    ]


def _is_far_above(laws: Laws, loss: float) -> bool:
    """So far above all that was seen that it is refused whatever it costs: bits per token would be as well, nats being fewer."""
    highest = laws.data.highest_loss
    return loss > LARGEST_LOSS or (highest is not None and loss * np.log(2.0) > highest)


def _fits(laws: Laws, loss: float) -> bool:
    return (laws.loss_compute.irreducible_loss or 0.0) < loss <= (laws.data.highest_loss or 0.0)


def other_units(laws: Laws, loss: float) -> str:
    """The units of the initial loss, or of the laws, in which it would be a loss that training reaches."""
    bits, length = float(np.log(2.0)), USUAL_BYTES_PER_TOKEN
    of_bytes = f"at {length:g} bytes per token"
    units = (
        ("a perplexity", float(np.log(loss)), "nats per token"),
        ("in bits per token", loss * bits, "nats per token"),
        ("in bits per byte", loss * bits * length, f"nats per token {of_bytes}"),
        ("in nats per byte", loss * length, f"nats per token {of_bytes}"),
        ("in nats per token and the laws in bits per token", loss / bits, "bits per token"),
        (
            "in nats per token and the laws in bits per byte",
            loss / bits / length,
            f"bits per byte {of_bytes}",
        ),
        (
            "in nats per token and the laws in nats per byte",
            loss / length,
            f"nats per byte {of_bytes}",
        ),
    )
    fitting = [
        f"if it is {unit}, it is {value:.4g} {there}"
        for unit, value, there in units
        if _fits(laws, value)
    ]
    if not fitting:
        return ""
    return f" It would fit in another unit: {'; '.join(fitting)}."


def _above_all_seen(laws: Laws, query: PredictionQuery, past: UnseenPast) -> Refusal:
    loss, highest = query.initial_loss or 1.0, laws.data.highest_loss or 0.0
    figures: dict[str, float | str] = {
        "initial_loss": loss,
        "highest_loss": highest,
        "largest_share": past.share,
    }
    reason, hint = RefusalReason.INITIAL_LOSS_ABOVE_ALL_SEEN, other_units(laws, loss)
    if loss > LARGEST_LOSS:
        hint = hint or (
            f" If it is a perplexity, the loss is its logarithm, {np.log(loss):.3f} nats per token."
        )
        message = f"The initial loss {loss:.4g} is above any loss in nats per token, which are at most {LARGEST_LOSS:g}.{hint}"
        return Refusal(reason, message, figures)
    message = f"The initial loss {loss:.4g} is above every loss of the sweep ({highest:.4g})"
    if past.share > LARGEST_UNSEEN_SHARE:
        message += (
            f", and its equivalent compute may matter: it is up to {past.share:.0%} of the total, more "
            f"than the {LARGEST_UNSEEN_SHARE:.0%} that may be ignored. "
        )
    else:
        message += ", even if it is in bits: that means another unit, or another text. "
    message += (
        "Check that it was measured on the sweep's validation text with its tokenizer, in the unit of the runs' losses. "
        "If it was, evaluate the runs earlier, so that they begin above it"
    )
    if past.share > LARGEST_UNSEEN_SHARE:
        message += ", or plan a larger budget."
    else:
        message += f", or give the total compute instead: the checkpoint's is at most {past.share:.1%} of it."
    return Refusal(reason, f"{message}{hint}", figures)


def _below_irreducible(laws: Laws, curve: LossComputeLaw, loss: float) -> Refusal:
    """Below L0 for certain, or only below an L0 that is not well known."""
    found = curve.irreducible_loss_interval
    assert curve.irreducible_loss is not None
    lowest = curve.irreducible_loss if found is None else found.low
    figures: dict[str, float | str] = {
        "initial_loss": loss,
        "irreducible_loss": curve.irreducible_loss,
        "lowest": lowest,
    }
    if loss <= lowest:
        return Refusal(
            RefusalReason.INITIAL_LOSS_BELOW_IRREDUCIBLE,
            f"The initial loss {loss:.4g} is not above the irreducible loss "
            f"{curve.irreducible_loss:.4g}: no amount of compute reaches it on the fitted curve. Check that it was measured "
            "on the sweep's validation text with its tokenizer. If it was, train the proxies to lower losses, or set a "
            f"lower irreducible loss.{other_units(laws, loss)}",
            figures,
        )
    return Refusal(
        RefusalReason.IRREDUCIBLE_LOSS_NOT_IDENTIFIED,
        f"The initial loss {loss:.4g} is within the interval of the irreducible loss, which starts at "
        f"{lowest:.4g} (estimate {curve.irreducible_loss:.4g}): its equivalent compute is unknown. "
        f"Train the proxies to lower losses, or set the irreducible loss if you know it.{other_units(laws, loss)}",
        figures,
    )


def _one_batch_size(batch_size: float) -> Refusal:
    return Refusal(
        RefusalReason.LAW_REFUSED,
        f"Every run has a batch size of {batch_size:g} sequences, so that no best one is known. Ask for the best learning "
        f"rate at it: give {batch_size:g} as the batch size.",
        {"batch_size": batch_size},
    )


OF_COMPUTE = frozenset({"side", "learning_rate"})
"""Figures of refusals for which the compute is to blame: it is too far from the data, or what the laws make of it is implausible."""


def of_the_loss(laws: Laws, query: PredictionQuery, question: Question, far: Refused) -> Refused:
    """A refusal with the units that would fit, where the initial loss makes most of a distance: one in another unit is likelier than such a
    checkpoint."""
    loss = query.initial_loss
    if loss is None or not far.refusals:
        return far
    first = far.refusals[0]
    if first.reason is not RefusalReason.EXTRAPOLATION_TOO_FAR:
        return far
    if not OF_COMPUTE & first.figures.keys():
        return far  # of a batch size or a learning rate that was given
    units, past = other_units(laws, loss), 1.0 - float(np.exp(question.log_share))
    if 2.0 * past < 1.0 or not units:
        return far
    message = f"{first.message} The initial loss, {loss:.4g}, makes {past:.0%} of the total compute.{units}"
    return replace(far, refusals=(replace(first, message=message), *far.refusals[1:]))


# ---------------------------------------------------------------------- how far from the data it is


SPANS = 3.0
NEAR, FAR_BELOW, FAR_ABOVE = 10.0, 100.0, 1000.0
UNIT_ABOVE, UNIT_ABOVE_COMPUTE = 1e4, 1e7
"""Factors over the data beyond which a size or tokens, or compute, are probably in another unit."""
CHECK_UNIT = " Check its unit."
FEWEST_PARAMS = 1e4
"""Smaller counts are probably in millions or billions."""


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


def refuse_answer(
    laws: Laws, question: Question, found: optimum.Optimum, answer: Point
) -> Refusal | None:
    """Why the laws' optimum, and the answer that it comes to, are none."""
    vague, wasted = (
        optimum.too_vague(laws, question, found),
        optimum.wasted(laws, found, found.mean_error),
    )
    return (
        implausible(laws, found.point)
        or vague
        or too_far(laws, question, wasted)
        # Last: where nothing is known, the batch size that a budget has few steps of is no finding.
        or too_few_steps(laws, question, answer.batch_size.value)
    )


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
        tokens = float(np.exp(min(float(place[1][0]), LARGEST_LOG)))
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
    flops = float(np.exp(min(question.log_flops, LARGEST_LOG)))
    yield Asked("total compute", flops, smallest, data.largest_flops, "FLOPs")


def implausible(laws: Laws, answer: Point) -> Refusal | None:
    """Refuse a learning rate or batch size that no run can use: the law left the range where it holds."""
    rate, batch = answer.learning_rate.value, answer.batch_size.value
    highest = max(LARGEST_RATE, max(laws.data.learning_rates, default=0.0))
    if rate >= highest and rate > max(laws.data.learning_rates, default=0.0):
        found, limit = f"learning rate {rate:.3g}", f"at most {highest:.3g}"
    elif round(batch) < 1:
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
