"""Reasons against a query that need no arithmetic."""

from typing import NamedTuple

import numpy as np

from isoloss.laws.answer.question import budget_flops
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Refusal, RefusalReason
from isoloss.laws.prediction import PredictionQuery
from isoloss.laws.results import LossComputeLaw
from isoloss.usual import LARGEST_LOSS, USUAL_BYTES_PER_TOKEN

LARGEST_UNSEEN_SHARE = 0.05
"""Largest share of the total compute that an unknown C_pre may have: it moves ln LR and ln B by a hundredth or
two."""
FAR_ABOVE = 1.5
"""Initial losses above the highest loss seen by this factor are refused whatever they cost: nats per token are 1.44 times as many bits,
and 3 times as many as bits per byte of English."""


def refuse_query(laws: Laws, query: PredictionQuery) -> list[Refusal]:
    """Reasons that need no arithmetic."""
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
    past = unseen_past(laws, query)
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


def unseen_past(laws: Laws, query: PredictionQuery) -> UnseenPast | None:
    """None if the initial loss is within the sweep's, or nothing can be said of it."""
    curve, highest, loss = laws.loss_compute.curve, laws.data.highest_loss, query.initial_loss
    if None in (curve, highest, loss) or query.total_flops is not None:
        return None
    if laws.started_from == "Checkpoints":
        return None
    assert curve is not None and highest is not None and loss is not None  # noqa: PT018
    if loss <= highest:
        return None
    most = float(np.exp(min(float(curve.log_x(highest)), 700.0)))
    return UnseenPast(most, most / (most + (budget_flops(laws, query) or 0.0)))


def unseen_sentences(laws: Laws, query: PredictionQuery) -> list[str]:
    """What is known of C_pre when the initial loss is above all that the sweep has seen."""
    past, loss = unseen_past(laws, query), query.initial_loss
    if past is None or loss is None:
        return []
    return [
        f"The initial loss {loss:.4g} is above every loss of the sweep ({laws.data.highest_loss:.4g}): C_pre is at most "
        f"{past.most:.2g} FLOPs, {past.share:.1%} of the total.{perplexity(laws, loss)}"
    ]


def _is_far_above(laws: Laws, loss: float) -> bool:
    highest = laws.data.highest_loss
    return loss > LARGEST_LOSS or (highest is not None and loss > FAR_ABOVE * highest)


def perplexity(laws: Laws, loss: float) -> str:
    """What to say of an initial loss above all seen whose logarithm is one that training reaches: perplexities are such."""
    found = float(np.log(loss))
    if loss <= LARGEST_LOSS and not _fits(laws, found):
        return ""
    return f" If it is a perplexity, the loss is its logarithm, {found:.3f} nats per token."


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
        message = (
            f"The initial loss {loss:.4g} is above any loss in nats per token, which are at most {LARGEST_LOSS:g}."
            f"{hint or perplexity(laws, loss)}"
        )
        return Refusal(reason, message, figures)
    message = f"The initial loss {loss:.4g} is above every loss of the sweep ({highest:.4g})"
    if past.share > LARGEST_UNSEEN_SHARE:
        message += (
            f", and its equivalent compute may matter: it is up to {past.share:.0%} of the total, more "
            f"than the {LARGEST_UNSEEN_SHARE:.0%} that may be ignored. "
        )
    else:
        message += (
            f": more than {FAR_ABOVE:g} times the highest means another unit, or another text. "
        )
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


def law_figures(refusal: Refusal) -> dict[str, float | str]:
    """The figures of a law's own refusal, for the refusal of what rests on it."""
    return {**refusal.figures, "law_reason": refusal.reason.value}


def _one_batch_size(batch_size: float) -> Refusal:
    return Refusal(
        RefusalReason.LAW_REFUSED,
        f"Every run has a batch size of {batch_size:g} sequences, so that no best one is known. Ask for the best learning "
        f"rate at it: give {batch_size:g} as the batch size.",
        {"batch_size": batch_size},
    )
