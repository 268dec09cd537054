"""The ledger that a pass starts from, and what it learns of the preparation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from isoloss_contract import layout
from isoloss_contract.ledger import Attempts, ConfigurationError, Ledger, PointRecord, Spend
from isoloss_contract.reading import Absent, Unreadable
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.jobs.attempts import after_failure, after_stop
from isoloss_operator.decide.jobs.failures import (
    Failure,
    FailureClass,
    awaits_result,
    classify,
    spec_field,
)
from isoloss_operator.decide.jobs.removal import aside, by_attempt
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import SetAside


@dataclass(frozen=True)
class Recorded:
    """The ledger with everything observed in it, and what is set aside for it."""

    ledger: Ledger
    set_aside: tuple[SetAside, ...] = ()

    @cached_property
    def by_key(self) -> dict[str, PointRecord]:
        """Records by point key, of points that were dropped too."""
        return {record.key: record for record in (*self.ledger.former, *self.ledger.points)}


def known_ledger(observed: ObservedSweep) -> Recorded:
    """The stored ledger; a new one where there is none or where what is stored is not this sweep's.

    With an unreadable ledger only the memory of failures is lost: results are found again, and what
    was spent stands in the status.
    """
    fresh = Ledger(
        sweep=observed.name,
        namespace=observed.namespace,
        uid=observed.uid,
        carried=_spent_by_the_status(observed),
    )
    path = layout.ledger_in(observed.folder)
    match observed.ledger:
        case Ledger(uid=observed.uid) as ledger:
            return Recorded(ledger)
        case Ledger(uid=uid):
            why = f"it is the ledger of another sweep, {uid}"
            return Recorded(fresh, (aside(path, f"foreign-{_stamp(observed)}", why),))
        case Unreadable(message):
            return Recorded(fresh, (aside(path, f"unreadable-{_stamp(observed)}", message),))
        case _:
            return Recorded(fresh)


def _stamp(observed: ObservedSweep) -> str:
    """Distinguishes this ledger set aside from the last one, which must stay."""
    return observed.now.strftime("%Y%m%dT%H%M%SZ")


def _spent_by_the_status(observed: ObservedSweep) -> Spend:
    """What the sweep had spent when its status was last written: nothing for a new sweep."""
    status = observed.status
    try:
        flops = float(status.get("spentFlops") or 0)
        seconds = 3600.0 * float(status.get("acceleratorHours") or 0)
        return Spend(max(0.0, flops), max(0.0, seconds))
    except (TypeError, ValueError):
        return Spend()


def for_spec(ledger: Ledger, generation: int, prepare_key: str) -> Ledger:
    """The ledger without what an earlier spec left behind."""
    error = ledger.configuration_error
    if error is not None and error.generation != generation:
        ledger = ledger.replace(configuration_error=None)
    if ledger.prepare_key != prepare_key:
        ledger = ledger.replace(
            prepare_key=prepare_key, preparation=Attempts(), data_digest="", corpus=None
        )
    return ledger


# ---------------------------------------------------------------------------------- preparation


def record_preparation(
    ledger: Ledger,
    observed: ObservedSweep,
    jobs: Iterable[ObservedJob],
    *,
    template: str,
    domains: Sequence[str],
) -> Ledger:
    """The ledger with every ended prepare Job in it (there is no manifest)."""
    for job in by_attempt(jobs):
        if not job.is_finished or job.attempt <= ledger.preparation.ended:
            continue
        if isinstance(observed.manifest, Absent) and awaits_result(job, observed.now):
            break
        failure = classify(job)
        field = spec_field(failure.field, domains=domains)
        attempts = after_failure(
            ledger.preparation, job, failure, template=template, now=observed.now
        )
        error = configuration_error(failure, job, observed, "prepare", field)
        ledger = ledger.replace(
            preparation=replace(attempts, last_message=failure.in_words(field, 1000)),
            configuration_error=error or ledger.configuration_error,
        )
    return ledger


def record_stopped_preparation(
    ledger: Ledger, stopped: Iterable[ObservedJob], observed: ObservedSweep
) -> Ledger:
    """The ledger once the operator stops these prepare Jobs."""
    attempts = ledger.preparation
    for job in stopped:
        attempts = after_stop(attempts, job, observed.now)
    return ledger.replace(preparation=attempts)


def configuration_error(
    failure: Failure, job: ObservedJob, observed: ObservedSweep, where: str, field: str
) -> ConfigurationError | None:
    """What a Job refused about the present spec; a Job of an earlier one cannot blame it."""
    if failure.kind is not FailureClass.BAD_CONFIGURATION:
        return None
    if job.generation not in (0, observed.generation):
        return None
    return ConfigurationError(
        generation=observed.generation,
        where=where,
        field=field,
        code=failure.code or str(failure.kind),
        message=shortened(failure.message, 1000),
    )
