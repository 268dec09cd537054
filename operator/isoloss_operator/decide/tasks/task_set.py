"""The tasks that one ledger keeps, what is observed of them, how they are to be run, and the ledger as the stages of a
pass hand it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from isoloss_contract.ledger import ConfigurationError, Ledger
from isoloss_contract.reading import ABSENT, Read, value_of
from isoloss_contract.records import PointProgress, PointResult
from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.jobs.failures import Failure, FailureClass
from isoloss_operator.decide.jobs.requests import by_attempt
from isoloss_operator.decide.observation import ObservedJob, ObservedTasks, StoredPoints
from isoloss_operator.decide.plans import SetAside
from isoloss_operator.decide.suspension import with_stopped
from isoloss_operator.planning.points import PlannedPoint

# --------------------------------------------------------------- the ledger as the stages hand it on


@dataclass(frozen=True)
class Recorded:
    """The ledger with everything observed in it, and what is set aside for it."""

    ledger: Ledger
    set_aside: tuple[SetAside, ...] = ()


def configuration_error(
    failure: Failure,
    job: ObservedJob,
    observed: ObservedTasks,
    where: str,
    field: str,
    asked: str,
) -> ConfigurationError | None:
    """What a Job refused about the present spec; a Job of an earlier one, or of which something else was `asked`, cannot
    blame it."""
    if failure.kind is not FailureClass.BAD_CONFIGURATION:
        return None
    if job.generation not in (0, observed.generation) or job.template not in ("", asked):
        return None
    return ConfigurationError(
        generation=observed.generation,
        where=where,
        field=field,
        code=failure.code or str(failure.kind),
        message=shortened(failure.message, 1000),
    )


# --------------------------------------------------------------------------- what a pass begins with


@dataclass(frozen=True)
class Budget:
    """What all attempts together may spend."""

    flops: str = ""
    """As its user wrote it; empty: no limit."""
    accelerator_hours: int | None = None


@dataclass(frozen=True)
class Policy:
    """What a spec says of how its tasks are run."""

    parallelism: int
    """Jobs that may hold a slot at a time."""
    is_queued: bool
    """Whether Jobs are created suspended, for Kueue to admit."""
    budget: Budget | None
    retries: int
    """Charged failures that a task may have."""
    max_failed: int
    """Tasks that may fail for good before nothing starts any more."""
    stall_seconds: int | None
    """An attempt that reports no progress for so long is ended; None: none is."""
    suspend: bool
    searches: bool
    """Whether a task waits until a search chooses it."""


@dataclass(frozen=True)
class TaskSet:
    """What a pass knows at its beginning."""

    world: ObservedTasks
    stored: StoredPoints
    policy: Policy
    store: str
    """LABEL_STORE of its Jobs."""
    points: Mapping[str, PlannedPoint]
    """Every task by key, in planned order."""
    known: Recorded
    """The stored ledger under the present spec."""
    data_digest: str
    """Digest of the corpus that the points train on."""
    models: Sequence[str]
    """config or checkpoint: what gives each size its model."""
    asked: Callable[[str], str]
    """LABEL_TEMPLATE of a Job by the `template_digest` of its point's proxy."""
    kept: frozenset[str] = frozenset()
    """Uids of the owner's Jobs that are no task here and may go on."""
    complaints: Callable[[Ledger], Sequence[tuple[str, str]]] = lambda _ledger: ()
    """Key and problem of each done point whose trajectory a fit of just this ledger could not read."""

    @cached_property
    def jobs(self) -> Mapping[str, tuple[ObservedJob, ...]]:
        """The Jobs of tasks by key in order of attempts, planned or not, those among them that were stopped and are
        gone. Jobs that write to another store are none of them."""
        by_key: dict[str, list[ObservedJob]] = {}
        own = (job for job in self.world.jobs if job.store == self.store)
        for job in with_stopped(own, self.world.stopped):
            if job.kind == "train" and job.store == self.store:
                by_key.setdefault(job.key, []).append(job)
        return {key: by_attempt(jobs) for key, jobs in by_key.items()}

    @cached_property
    def active(self) -> tuple[ObservedJob, ...]:
        """Jobs of planned tasks that hold a slot."""
        return tuple(
            job
            for job in self.world.jobs
            if job.holds_a_slot and job.kind == "train" and job.key in self.points
        )

    @property
    def stored_ledger(self) -> Ledger | None:
        """The ledger in the store: what is in it survives the operator."""
        return value_of(self.stored.ledger)

    def result(self, key: str) -> Read[PointResult]:
        """What is stored as a task's result."""
        return self.stored.results.get(key, ABSENT)

    @cached_property
    def progress(self) -> Mapping[str, PointProgress]:
        """What an attempt of this very owner last reported of each task."""
        return {
            key: progress
            for key, progress in self.stored.progress.items()
            if progress.claimant.sweep_uid == self.world.uid
        }
