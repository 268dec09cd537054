"""Reasons to doubt that probes continue the checkpoint that was asked about."""

import numpy as np

from isoloss.formatting import loss as loss_text
from isoloss.formatting import number
from isoloss.laws import PredictionQuery
from isoloss.validation.probes import BEYOND_NOISE, InvalidProbes, Probe

SAME_SIZE = 0.01
"""Relative difference up to which two counts of parameters are of one model."""
SMALLEST = 1.0 / 3.0
"""Of the target's size: make bench-transfer found that a sibling of a third of it halves what an answer loses where the
rule is wrong, and that one of a ninth leaves it."""
ABOVE = 0.05
"""Nats above the initial loss from which on a probe that is to have lowered it is doubted; BEYOND_NOISE of its errors are granted in addition."""
FALLS = 4.0
"""Times the fall of the loss that the laws expect of the whole budget, from which on a probe's is doubted; ABOVE is granted in
addition."""
LIKE_BITS = (0.94, 1.02)
"""Ratios of a loss, in bits and taken back to nats, to the initial one, which training lowers by a few percent."""


def caveats(
    query: PredictionQuery, at_answer: Probe, expected: float | None = None
) -> tuple[str, ...]:
    """Warnings about the answer's probe, where the laws expect the loss `expected` of the whole budget. Raises InvalidProbes
    for one of a model that cannot stand for the target."""
    of_another = _of_another_size(query.params, at_answer.params)
    # A smaller model has an initial loss of its own, which nobody was asked for.
    return (
        of_another
        or _above_the_checkpoint(query, at_answer)
        or _below_the_laws(query, at_answer, expected)
    )


def _of_another_size(target: float | None, trained: float | None) -> tuple[str, ...]:
    if target is None or trained is None or abs(trained / target - 1.0) <= SAME_SIZE:
        return ()
    sizes = f"the probes are of a model of {number(trained)} parameters, the target has {number(target)}"
    if trained > target:
        raise InvalidProbes(
            f"{sizes}: train the checkpoint itself, or a smaller model of its kind"
        )
    if trained < SMALLEST * target * (1.0 - SAME_SIZE):
        raise InvalidProbes(
            f"{sizes}: a model of less than a third of the size has other best settings than the target"
        )
    return (
        f"{sizes.capitalize()}: where the laws' answer is wrong, a smaller model shows only part of it.",
    )


def _above_the_checkpoint(query: PredictionQuery, at_answer: Probe) -> tuple[str, ...]:
    """A warning if the answer's probe ends above the loss that it started from."""
    initial = query.initial_loss
    if initial is None or at_answer.diverged:
        return ()
    error = float(np.hypot(at_answer.standard_error, query.initial_loss_standard_error))
    above = at_answer.loss - initial
    if above <= ABOVE + BEYOND_NOISE * error:
        return ()
    ratio = at_answer.loss / initial
    low, high = LIKE_BITS
    cause = (
        f"That is {ratio:.2f} times as much, and a nat is 1.44 bits: the probes' losses look like bits per token"
        if low <= ratio * np.log(2.0) <= high
        else "Training lowers it, unless it is too short to win back what a fresh optimizer costs at first. The probe may "
        "have been evaluated on another text or in another unit, or have started from another checkpoint"
    )
    return (
        f"The answer's probe ends at a loss of {loss_text(at_answer.loss)}, {loss_text(above)} above the initial loss of "
        f"{loss_text(initial)}. {cause}.",
    )


def _below_the_laws(
    query: PredictionQuery, at_answer: Probe, expected: float | None
) -> tuple[str, ...]:
    """A warning if the answer's probe ends far below what the laws expect of all of the budget."""
    initial = query.initial_loss
    if initial is None or expected is None or at_answer.diverged:
        return ()
    error = float(np.hypot(at_answer.standard_error, query.initial_loss_standard_error))
    fall = initial - at_answer.loss
    if fall <= FALLS * max(0.0, initial - expected) + ABOVE + BEYOND_NOISE * error:
        return ()
    return (
        f"The answer's probe ends at a loss of {loss_text(at_answer.loss)}, {loss_text(fall)} below the initial loss of "
        f"{loss_text(initial)}; the laws expect {loss_text(expected)} of the whole budget. It may have been evaluated on "
        "text that it was trained on, on another text or in another unit.",
    )
