"""What the passes over both kinds share: reading Jobs, remembering refusals, writing the status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from isoloss.observation import (
    LABEL_OWNER_UID,
    Event,
    JobRequest,
    ObservedJob,
)
from isoloss.store import StoreError
from isoloss_operator.cluster import JOB, POD, Conflict, NotFound
from isoloss_operator.events import send_events
from isoloss_operator.jobs import CreateRefused
from isoloss_operator.manifests import Owner
from isoloss_operator.observe import is_owned_by, loose_pods, observe_jobs
from isoloss_operator.resource_keys import ResourceKey
from isoloss_operator.services import Services

Object = Mapping[str, Any]


@dataclass
class Memory:
    """What one pass tells the next. Losing it costs a pass, never a result.

    One worker at a time has a resource's key, so nothing here needs a lock.
    """

    uid: str
    refused: JobRequest | None = None
    """A Job that could not be created, of this generation:"""
    generation: int = 0
    store_failure: str = ""
    """What went wrong with the store after it had been read without trouble."""
    laws_looked_for: bool = False
    """laws.json of an earlier process was read, or is not there."""


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

    def forget(self, key: ResourceKey) -> Memory | None:
        """The resource is gone; what was remembered of it."""
        return self._memories.pop(key, None)


@dataclass(frozen=True)
class LiveJobs:
    """A resource's Jobs and pods, read past every cache."""

    jobs: tuple[ObservedJob, ...]
    loose_pods: tuple[str, ...]


def read_jobs(services: Services, owner: Owner, key: ResourceKey) -> LiveJobs:
    """LIST the Jobs, then the pods: a Job seen as ended can not have an unseen running pod."""
    labels = f"{LABEL_OWNER_UID}={owner.uid}"
    jobs = [
        job
        for job in services.cluster.list(JOB, owner.namespace, labels=labels)
        if is_owned_by(job, owner.uid)
    ]
    # Succeeded pods have nothing to tell that their Job does not, and they are most of all pods.
    unsuccessful = "status.phase!=Succeeded"
    pods = list(services.cluster.list(POD, owner.namespace, labels=labels, fields=unsuccessful))
    versions = {job["metadata"]["uid"]: job["metadata"]["resourceVersion"] for job in jobs}
    services.watchdog.read((key, JOB.kind), versions)
    return LiveJobs(observe_jobs(jobs, pods), loose_pods(jobs, pods))


def create_error(services: Services, owner: Owner, memory: Memory, generation: int) -> str:
    """Why Jobs are refused, asked anew by a dry run; empty once they no longer would be."""
    if memory.refused is None:
        return ""
    if memory.generation != generation:
        memory.refused = None
        return ""
    error = services.jobs.check(owner, memory.refused)
    if not error:
        memory.refused = None
    return error


def carry_out(memory: Memory, generation: int, writes: Callable[[], None]) -> bool:
    """Do the writes of a plan; False where they failed in a way that the next pass has to know.

    Raises ClusterError where the API server did not answer: the queue then tries again.
    """
    try:
        writes()
    except CreateRefused as error:
        memory.refused, memory.generation = error.request, generation
        return False
    except StoreError as error:
        memory.store_failure = str(error)
        return False
    return True


def write_status(
    services: Services, owner: Owner, before: Object, status: BaseModel, events: tuple[Event, ...]
) -> bool:
    """Apply the status if it changed, then send events; False where the resource is gone by now."""
    document = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    if document != before:
        kind, namespace, name = owner.kind, owner.namespace, owner.name
        try:
            services.cluster.apply_status(kind, namespace, name, owner.uid, document)
        except (NotFound, Conflict):
            return False
    send_events(services.cluster, owner, services.settings.identity, events)
    return True
