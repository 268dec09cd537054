"""What the passes over both kinds share: reading Jobs, remembering refusals, writing the status."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from isoloss_contract.reading import Read, Unanswered
from isoloss_contract.records import PointResult
from isoloss_contract.store import StoreError, WriteConflict, time_limit
from isoloss_operator.api import HyperparamPredictionSpec, ScalingSweepSpec
from isoloss_operator.api.statuses import StatusType
from isoloss_operator.cluster.client import (
    JOB,
    UNREADABLE,
    ClusterError,
    Conflict,
    NotFound,
    Refused,
    Unavailable,
)
from isoloss_operator.cluster.events import send_events
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.cluster.live_jobs import LiveJobs
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.resource_keys import ResourceKey
from isoloss_operator.decide import suspension
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.failed_pass import (
    api_server_unavailable,
    failed_pass,
    internal_error,
    request_refused,
)
from isoloss_operator.decide.jobs.progress import Mark
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import Event
from isoloss_operator.planning.nesting import too_deep
from isoloss_operator.planning.specs import InvalidSpec, SpecError
from isoloss_operator.reconcile.intervals import status_pause
from isoloss_operator.reconcile.services import Services

logger = logging.getLogger(__name__)
Object = Mapping[str, Any]
Spec = TypeVar("Spec")
SOON_SECONDS = 1.0
UNANSWERED_PASSES = 5
"""In a row, before the conditions speak of it: seven seconds. One missed answer is nothing to tell."""
STORE_SECONDS = 60.0
"""For all that a pass reads from the store, and for all that it writes there."""


@dataclass
class Memory:
    """What one pass leaves for the next. Losing it costs a pass, never a result.

    One worker at a time has a resource's key, so nothing here needs a lock.
    """

    uid: str
    create_error: str = ""
    """Why a Job was refused, until one is created or the spec changes."""
    refusal_may_pass: bool = False
    """Whether that refusal may end by itself."""
    generation: int = 0
    """Of the spec that `create_error` speaks of."""
    store_write_error: str = ""
    """Why the store did not take what the last pass wrote."""
    write_error: str = ""
    """Which write other than a Job's creation the API server refused in the last pass."""
    publish_error: str = ""
    """Why the API server refused a prediction's ConfigMap in the last pass."""
    publish_error_may_pass: bool = False
    """Whether that refusal may end by itself."""
    laws_looked_for: bool = False
    """laws.json of an earlier process was read, or is not there."""
    report_missing: bool = False
    """It was read, its report was never drawn, and no fit was started since."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """Since when each training Job has reported no progress."""
    failed_read_at: float = field(default_factory=time.monotonic)
    """When the results of points that have failed were last looked for; the first pass is in a hurry."""
    written_at: float = -math.inf
    """When the status was last written."""
    stopped: tuple[ObservedJob, ...] = ()
    """Jobs that a suspension stopped and that the ledger does not have yet."""
    unanswered: int = 0
    """Passes in a row that failed for want of an answer of the API server."""


class Memories:
    """The memory of each resource; a namesake with another uid starts with none."""

    def __init__(self) -> None:
        self._memories: dict[ResourceKey, Memory] = {}

    def of(self, key: ResourceKey, uid: str) -> Memory:
        """The memory of the resource with that uid."""
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = Memory(uid)
        return memory

    def forget_other(self, key: ResourceKey, uid: str) -> Memory | None:
        """The memory of a namesake with another uid, which is gone; None: there was none."""
        memory = self._memories.get(key)
        return self.forget(key) if memory is not None and memory.uid != uid else None

    def forget(self, key: ResourceKey) -> Memory | None:
        """Drop and return the memory of a resource that is gone."""
        return self._memories.pop(key, None)


def parsed(parse: Callable[[Object], Spec], body: Object) -> Spec | InvalidSpec:
    """The spec of an object, or everything that is wrong with it. Parsed here, once per pass."""
    spec = body.get("spec") or {}
    problem = body.get(UNREADABLE) or too_deep(spec)
    if problem:
        return InvalidSpec([SpecError("spec", problem)])
    try:
        return parse(spec)
    except InvalidSpec as error:
        error.suspend = spec.get("suspend") is True
        return error


def stop_suspended(
    services: Services,
    owner: Owner,
    memory: Memory,
    spec: ScalingSweepSpec | HyperparamPredictionSpec | InvalidSpec,
    live: LiveJobs,
) -> tuple[ObservedJob, ...]:
    """Stop the Jobs of a suspended resource before anything else is read; those that are not known to be recorded."""
    if spec.suspend:
        now = services.cluster.clock.now()
        delete, memory.stopped = suspension.stop(live.jobs, memory.stopped, now)
        tolerated(memory, lambda: services.jobs.delete(owner, delete))
    return memory.stopped


def read_jobs(services: Services, owner: Owner, key: ResourceKey) -> LiveJobs:
    """The Jobs and pods as they are now; the watch must deliver them, too."""
    live = services.job_reader.read(owner)
    services.watchdog.read((key, JOB.kind), live.versions)
    return live


def carry_out(memory: Memory, generation: int, writes: Callable[[], None]) -> bool:
    """Do the writes of a plan; False where one failed in a way that the next pass must know of.

    Raises ClusterError where the API server did not answer: the queue then tries again.
    """
    memory.write_error = memory.publish_error = ""
    try:
        with time_limit(STORE_SECONDS):
            writes()
    except CreateRefused as error:
        memory.create_error, memory.generation = str(error), generation
        memory.refusal_may_pass = error.may_pass
        return False
    except WriteConflict:
        return False  # another has written the ledger: the next pass reads it
    except StoreError as error:
        memory.store_write_error = str(error)
        return False
    memory.store_write_error = ""
    return not (memory.write_error or memory.publish_error)


def results_of_failed(
    memory: Memory,
    read: Callable[[], Mapping[str, Read[PointResult]]],
    interval: float,
    clock: Callable[[], float] = time.monotonic,
) -> Mapping[str, Read[PointResult]]:
    """What `read` finds, once in so many seconds: a thousand failed points are a thousand reads.

    Where the store did not answer for all of them, the next pass reads again.
    """
    now = clock()
    if now - memory.failed_read_at < interval:
        return {}
    found = read()
    if not any(isinstance(each, Unanswered) for each in found.values()):
        memory.failed_read_at = now
    return found


def tolerated(memory: Memory, write: Callable[[], None]) -> None:
    """Do a write without which the others make sense; a refusal is remembered for the conditions."""
    try:
        write()
    except Refused as error:
        memory.write_error = memory.write_error or str(error)


def had_trouble(memory: Memory) -> bool:
    """Whether the last pass was refused something: the conditions say so already."""
    return bool(
        memory.create_error
        or memory.store_write_error
        or memory.write_error
        or memory.publish_error
    )


def after_trouble(memory: Memory) -> float:
    """Seconds until the next look at a resource that was in trouble before this pass.

    Once nothing is refused any more the conditions, which were decided before, should soon say so.
    """
    return math.inf if had_trouble(memory) else SOON_SECONDS


def create_error(memory: Memory, generation: int) -> str:
    """Why the last Job of this generation was refused; empty where none was."""
    return memory.create_error if memory.generation == generation else ""


class StatusChanged(Exception):
    """The object is no longer the one that was read: its status must not state what was decided."""

    expected = True


def write_status(
    services: Services,
    owner: Owner,
    memory: Memory,
    body: Object,
    status: StatusType,
    events: tuple[Event, ...],
) -> float:
    """Apply the status if it changed, then send events; seconds until it may be written again.

    Conditions are written at once; numbers alone as intervals.py says. Raises
    StatusChanged where `body` is no longer the newest.
    """
    return _write(services, owner, memory, body, status.document(), events)


@contextlib.contextmanager
def reporting_failures(
    services: Services, owner: Owner, memory: Memory, body: Object
) -> Iterator[None]:
    """Say in the conditions where a pass as a whole is refused, gets no answer again and again, or fails in a
    way that nobody foresaw.

    The error goes on to the queue, which tries again later.
    """
    try:
        yield
        memory.unanswered = 0
    except Unavailable as error:
        memory.unanswered += 1
        if memory.unanswered >= UNANSWERED_PASSES:
            _report(services, owner, memory, body, api_server_unavailable(error))
        raise
    except Refused as error:
        _report(services, owner, memory, body, request_refused(error))
        raise
    except Exception as error:
        if not getattr(error, "expected", False):
            _report(services, owner, memory, body, internal_error(error))
        raise


def _report(
    services: Services, owner: Owner, memory: Memory, body: Object, finding: Finding
) -> None:
    """Never raises: the error of the pass is the one to be logged."""
    generation, now = body["metadata"].get("generation", 0), services.cluster.clock.now()
    try:
        try:
            document = failed_pass(body.get("status") or {}, generation, now, finding)
            _write(services, owner, memory, body, document, ())
        except (
            Refused
        ):  # for what stands in the status, perhaps: say at least why nothing is written
            document = failed_pass({}, generation, now, finding)
            _write(services, owner, memory, body, document, ())
    except (ClusterError, StatusChanged) as failed:
        logger.warning("%s %s: cannot report: %s", owner.kind.kind, owner.name, failed)


def _write(
    services: Services,
    owner: Owner,
    memory: Memory,
    body: Object,
    document: Mapping[str, Any],
    events: tuple[Event, ...],
) -> float:
    before = body.get("status") or {}
    if document == before:
        return math.inf
    since_written = time.monotonic() - memory.written_at
    if wait := status_pause(before, document, since_written, services.settings):
        return wait
    try:
        services.cluster.apply_status(owner.kind, body["metadata"], dict(document))
    except (NotFound, Conflict) as error:
        raise StatusChanged(f"{owner.kind.kind} {owner.name} changed meanwhile") from error
    memory.written_at = time.monotonic()
    send_events(services.cluster, owner, services.settings.identity, events)
    return math.inf
