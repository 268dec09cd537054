"""What the passes over both kinds share: reading Jobs, remembering refusals, writing the status."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from isoloss_contract.store import StoreError, time_limit
from isoloss_operator.cluster.client import JOB, POD, Conflict, NotFound
from isoloss_operator.cluster.events import send_events
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.observe import is_owned_by, observe_jobs, orphaned_pods
from isoloss_operator.cluster.resource_keys import ResourceKey
from isoloss_operator.decide.jobs.progress import Mark
from isoloss_operator.decide.labels import LABEL_KIND, LABEL_OWNER_UID
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import Event
from isoloss_operator.planning.specs import InvalidSpec
from isoloss_operator.reconcile.services import Services

Object = Mapping[str, Any]
Spec = TypeVar("Spec")
STORE_SECONDS = 60.0
"""For all that a pass reads from the store, and for all that it writes there."""
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOBS_PER_LIST = 50
"""Names that one request selects by: they are part of its URL."""


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
    store_failure: str = ""
    """Why a write to the store failed although reading it worked."""
    laws_looked_for: bool = False
    """laws.json of an earlier process was read, or is not there."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """Since when each training Job has reported no progress."""
    written_at: float = -math.inf
    """When the status was last written."""


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


@dataclass(frozen=True)
class LiveJobs:
    """A resource's Jobs and pods, read live."""

    jobs: tuple[ObservedJob, ...]
    orphaned_pods: tuple[str, ...]


def parsed(parse: Callable[[Object], Spec], body: Object) -> Spec | InvalidSpec:
    """The spec of an object, or everything that is wrong with it. Parsed here, once per pass."""
    try:
        return parse(body.get("spec") or {})
    except InvalidSpec as error:
        return error


def read_jobs(services: Services, owner: Owner, key: ResourceKey) -> LiveJobs:
    """LIST the Jobs, then the pods: a Job seen as ended cannot have an unseen running pod."""
    labels = f"{LABEL_OWNER_UID}={owner.uid}"
    jobs = [
        job
        for job in services.cluster.list(JOB, owner.namespace, labels=labels)
        if is_owned_by(job, owner.uid)
    ]
    # Succeeded pods are most of all pods; all they tell is how long they ran, and that once.
    unsuccessful = "status.phase!=Succeeded"
    pods = list(services.cluster.list(POD, owner.namespace, labels=labels, fields=unsuccessful))
    pods += _pods_of_newly_complete(services, owner, jobs)
    versions = {job["metadata"]["uid"]: job["metadata"]["resourceVersion"] for job in jobs}
    services.watchdog.read((key, JOB.kind), versions)
    return LiveJobs(observe_jobs(jobs, pods), orphaned_pods(jobs, pods))


def _pods_of_newly_complete(
    services: Services, owner: Owner, jobs: Sequence[Object]
) -> Iterator[dict[str, Any]]:
    """The pods of train Jobs that succeeded and are not in the ledger yet: recorded ones expire."""
    names = [
        job["metadata"]["name"]
        for job in jobs
        if (job.get("status") or {}).get("completionTime")
        and job["spec"].get("ttlSecondsAfterFinished") is None
        and job["metadata"].get("labels", {}).get(LABEL_KIND) == "train"
    ]
    for start in range(0, len(names), JOBS_PER_LIST):
        some = ",".join(names[start : start + JOBS_PER_LIST])
        labels = f"{LABEL_OWNER_UID}={owner.uid},{JOB_NAME_LABEL} in ({some})"
        succeeded = "status.phase=Succeeded"
        yield from services.cluster.list(POD, owner.namespace, labels=labels, fields=succeeded)


def carry_out(memory: Memory, generation: int, writes: Callable[[], None]) -> bool:
    """Do the writes of a plan; False where they failed in a way that the next pass must know of.

    Raises ClusterError where the API server did not answer: the queue then tries again.
    """
    try:
        with time_limit(STORE_SECONDS):
            writes()
    except CreateRefused as error:
        memory.create_error, memory.generation = str(error), generation
        memory.refusal_may_pass = error.may_pass
        return False
    except StoreError as error:
        memory.store_failure = str(error)
        return False
    return True


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
    status: BaseModel,
    events: tuple[Event, ...],
) -> float:
    """Apply the status if it changed, then send events; seconds until it may be written again.

    Conditions are written at once; numbers alone no more often than the configuration says. Raises
    StatusChanged where `body` is no longer the newest.
    """
    document = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    before = body.get("status") or {}
    if document == before:
        return math.inf
    wait = memory.written_at + services.settings.status_interval_seconds - time.monotonic()
    if wait > 0 and document.get("conditions") == before.get("conditions"):
        return wait
    try:
        services.cluster.apply_status(owner.kind, body["metadata"], document)
    except (NotFound, Conflict) as error:
        raise StatusChanged(f"{owner.kind.kind} {owner.name} changed meanwhile") from error
    memory.written_at = time.monotonic()
    send_events(services.cluster, owner, services.settings.identity, events)
    return math.inf
