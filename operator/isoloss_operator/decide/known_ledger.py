"""The ledger that a pass begins with: the one in the store or a new one, without what an earlier spec left behind."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from isoloss_contract import layout
from isoloss_contract.ledger import (
    FAILED_FOR_GOOD,
    Attempts,
    IntentAction,
    Ledger,
    LostLedger,
    PointRecord,
    PointState,
)
from isoloss_contract.reading import Read, Unreadable
from isoloss_contract.records import PrepareConfig
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.conditions import shortened, timestamp
from isoloss_operator.decide.observation import ObservedResource, ObservedSweep
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.planning.specs import prepare_config

MAX_PROBLEM: Final = 600


@dataclass(frozen=True)
class Recorded:
    """A ledger, and what is quarantined for it."""

    ledger: Ledger
    quarantined: tuple[Quarantine, ...] = ()


def sweep_ledger(observed: ObservedSweep, spec: ScalingSweepSpec) -> Recorded:
    """Ledger of the points of a sweep under its present spec."""
    prepare_key = prepare_config(spec).key
    path = layout.ledger_in(layout.sweep_folder(observed.name, observed.uid))
    # Of a status that tells of attempts: there was a ledger then.
    numbers = (observed.status.get(name) for name in ("spentFlops", "acceleratorHours"))
    has_spent = any(str(number or "0") != "0" for number in numbers)
    template, max_failed = observed.operator_template, spec.failure_policy.max_failed_points
    known = known_ledger(observed, observed.ledger, path, template, has_spent=has_spent)
    ledger = under_present(known.ledger, observed.generation, template, max_failed)
    if ledger.prepare_key != prepare_key:
        ledger = ledger.replace(
            prepare_key=prepare_key, preparation=Attempts(), data_digest="", corpus=None
        )
    return replace(known, ledger=ledger)


def known_ledger(
    parent: ObservedResource, stored: Read[Ledger], path: str, template: str, *, has_spent: bool
) -> Recorded:
    """The ledger stored at `path`; a new one if there is none or if what is stored is not that of `parent`.

    A new one finds all results again. What the former knew of failures, decisions and spend is lost, which it says.
    `template` is Ledger.template of a new one.
    """
    new = partial(
        Ledger, sweep=parent.name, namespace=parent.namespace, uid=parent.uid, template=template
    )
    match stored:
        case Ledger(uid=parent.uid) as ledger:
            return Recorded(ledger)
        case Ledger(uid=other):
            problem, suffix = f"It is the ledger of the resource with the uid {other}.", "foreign"
        case Unreadable(message):
            problem, suffix = message, "unreadable"
        case _ if parent.lost_ledger is not None:
            return Recorded(new(lost=parent.lost_ledger))
        case _ if has_spent:
            problem, suffix = f"There is no {path} any more.", ""
        case _:
            return Recorded(new())
    at = parent.lost_ledger.at if parent.lost_ledger else timestamp(parent.now)
    # Of the hour, so that a store that refuses what follows does not get one more object with each try.
    stamp = f"{at[:13].replace('-', '')}0000Z"
    request = Quarantine(path, f"{suffix}-{stamp}") if suffix else None
    lost = LostLedger(
        at,
        shortened(problem, MAX_PROBLEM),
        request.new_path if request else "",
    )
    return Recorded(new(lost=lost), (request,) if request else ())


def under_present(ledger: Ledger, generation: int, template: str, max_failed: int) -> Ledger:
    """The ledger without what was refused about an earlier generation of the spec, or under other pods than those of
    `template`, whose failures start at zero. `max_failed` is failurePolicy.maxFailedPoints."""
    changes: dict[str, Any] = {}
    error, points = ledger.configuration_error, ledger.points
    if error is not None and error.generation != generation:
        error = changes["configuration_error"] = None
    if template != ledger.template and template and ledger.template:
        if error is not None or _is_under_way(points, max_failed):
            reset = (replace(each, attempts=_reset_retries(each.attempts)) for each in points)
            changes["points"] = tuple(reset)
        changes |= {
            "template": template,
            "configuration_error": None,
            "preparation": _reset_retries(ledger.preparation),
            "evaluation": _reset_retries(ledger.evaluation),
        }
    return ledger.replace(**changes) if changes else ledger


def _is_under_way(points: Sequence[PointRecord], max_failed: int) -> bool:
    """Whether a point is still to train, or failures keep all from it: an upgrade of the operator must not begin a sweep
    again that has its laws."""
    if sum(record.state in FAILED_FOR_GOOD for record in points) > max_failed:
        return True
    pending = (record for record in points if record.state is PointState.PENDING)
    return any(record.intent.action is IntentAction.RUN for record in pending)


def _reset_retries(attempts: Attempts) -> Attempts:
    """Whatever was charged was so under another template."""
    return replace(attempts, template="")


def corpus_of_ledger(spec: ScalingSweepSpec, ledger: Ledger | None) -> PrepareConfig | None:
    """What the corpus of a sweep that has begun was prepared as; None: it has none yet."""
    asked = prepare_config(spec)
    if ledger is None or ledger.corpus is None or ledger.prepare_key != asked.key:
        return None
    if ledger.corpus.prepare_key == asked.key:
        return asked
    return prepare_config(spec, ledger.corpus.sources_stamp)
