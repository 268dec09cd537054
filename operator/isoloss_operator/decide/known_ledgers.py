"""The ledger that a pass over a resource begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, Spend
from isoloss_contract.reading import Read, Unreadable
from isoloss_operator.decide.jobs.removal import aside
from isoloss_operator.decide.observation import ObservedPrediction, ObservedSweep, ObservedTasks
from isoloss_operator.decide.tasks.ledgers import Recorded


def sweep_ledger(observed: ObservedSweep) -> Recorded:
    """Ledger of the points of a sweep."""
    folder = layout.sweep_folder(observed.name, observed.uid)
    return _known(observed, observed.ledger, folder, _spent_by(observed.status))


def prediction_ledger(observed: ObservedPrediction) -> Recorded:
    """Ledger of the evaluation and the probes of a prediction."""
    folder = layout.prediction_folder(observed.name, observed.uid)
    status = observed.status.get("validation")
    spent = _spent_by(status if isinstance(status, dict) else {})
    return _known(observed, observed.probes.ledger, folder, spent)


def _known(owner: ObservedTasks, stored: Read[Ledger], folder: str, carried: Spend) -> Recorded:
    """The ledger stored in `folder`; a new one if there is none or if what is stored is not its owner's.

    With an unreadable ledger only the memory of failures is lost: results are found again, and what
    was spent is `carried`.
    """
    fresh = Ledger(sweep=owner.name, namespace=owner.namespace, uid=owner.uid, carried=carried)
    path = layout.ledger_in(folder)
    match stored:
        case Ledger(uid=owner.uid) as ledger:
            return Recorded(ledger)
        case Ledger(uid=uid):
            why = f"it is the ledger of another sweep, {uid}"
            return Recorded(fresh, (aside(path, f"foreign-{_stamp(owner)}", why),))
        case Unreadable(message):
            return Recorded(fresh, (aside(path, f"unreadable-{_stamp(owner)}", message),))
        case _:
            return Recorded(fresh)


def _stamp(owner: ObservedTasks) -> str:
    """Distinguishes this ledger set aside from the last one, which must stay."""
    return owner.now.strftime("%Y%m%dT%H%M%SZ")


def told_spend(observed: ObservedSweep, ledger: Ledger) -> Spend:
    """What a sweep has spent if its Jobs cannot be asked, because without a corpus points have no keys: what the ledger
    knows, or what the status told of Jobs whose end the ledger did not know."""
    told, known = _spent_by(observed.status), ledger.spent
    return Spend(
        max(told.flops, known.flops), max(told.accelerator_seconds, known.accelerator_seconds)
    )


def _spent_by(status: Mapping[str, Any]) -> Spend:
    """What had been spent when the status was last written: nothing for a new resource."""
    try:
        flops = float(status.get("spentFlops") or 0)
        seconds = 3600.0 * float(status.get("acceleratorHours") or 0)
        return Spend(max(0.0, flops), max(0.0, seconds))
    except (TypeError, ValueError):
        return Spend()
