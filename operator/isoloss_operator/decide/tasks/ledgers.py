"""What the stages of a pass do to a ledger, and to what is next to it in the store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from isoloss_contract.ledger import Attempts, ConfigurationError, Ledger, PointRecord
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.jobs.failures import Failure, FailureClass
from isoloss_operator.decide.observation import ObservedJob, ObservedTasks
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


def under_generation(ledger: Ledger, generation: int) -> Ledger:
    """The ledger without what was refused about an earlier spec."""
    error = ledger.configuration_error
    if error is None or error.generation == generation:
        return ledger
    return ledger.replace(configuration_error=None)


def for_spec(ledger: Ledger, generation: int, prepare_key: str) -> Ledger:
    """The ledger without what an earlier spec left behind."""
    ledger = under_generation(ledger, generation)
    if ledger.prepare_key != prepare_key:
        ledger = ledger.replace(
            prepare_key=prepare_key, preparation=Attempts(), data_digest="", corpus=None
        )
    return ledger


def configuration_error(
    failure: Failure, job: ObservedJob, observed: ObservedTasks, where: str, field: str
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
