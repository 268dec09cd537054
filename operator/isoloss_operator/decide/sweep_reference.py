"""What a prediction learns of the sweep that it names: its final laws, or why there are none."""

from __future__ import annotations

from isoloss.laws import RefusalReason
from isoloss_contract.reading import Read, value_of
from isoloss_operator.decide.conditions import READY, Finding
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import ObservedReference
from isoloss_operator.decide.reasons import Reason


def sweep_not_ready(reference: ObservedReference) -> Finding:
    """Why a sweep gives no answer yet, in the words of its own Ready."""
    name, ready = reference.name, reference.conditions.get(READY)
    if ready is None:
        return Finding.false(
            Reason.SWEEP_NOT_READY, f"The operator has not processed ScalingSweep {name} yet."
        )
    found = Finding.of(ready)
    if isinstance(found.reason, RefusalReason):
        message = f"The laws of ScalingSweep {name} were refused: {ready.message}"
        return Finding.false(found.reason, message, stalled=True)
    message = f"ScalingSweep {name} is not ready ({ready.reason}): {ready.message}"
    return Finding.false(Reason.SWEEP_NOT_READY, message)


def final_fit(reference: ObservedReference, read: Read[FitOutcome]) -> FitOutcome | Finding:
    """The final fit of a sweep's present generation, or why there is none. `read` is what is stored."""
    ready = reference.conditions.get(READY)
    if ready is None or ready.status != "True":
        return sweep_not_ready(reference)
    if ready.observed_generation != reference.generation:
        message = f"The operator has not processed the changed ScalingSweep {reference.name} yet."
        return Finding.false(Reason.SWEEP_CHANGED, message)
    if ready.reason == Reason.NOTHING_TO_FIT:
        message = f"ScalingSweep {reference.name} has no laws, as its points lie around answers: name the sweep whose laws answer"
        return Finding.false(Reason.SWEEP_INVALID, message, stalled=True)
    fit = value_of(read)
    if fit is None or fit.laws is None:
        return Finding.false(Reason.LAWS_UNREADABLE, "laws.json is missing or cannot be read.")
    if fit.laws_sha256 != reference.parsed_status.laws_sha256:
        message = "laws.json is not the one that the sweep's status names."
        return Finding.false(Reason.LAWS_UNREADABLE, message)
    return fit
