"""What the passes over both kinds share: reading Jobs, remembering refusals, writing the status."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from isoloss_contract.store import StoreError
from isoloss_operator.cluster.client import JOB, Conflict, NotFound
from isoloss_operator.cluster.events import send_events
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.cluster.live_jobs import LiveJobs
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.resource_keys import ResourceKey
from isoloss_operator.decide.jobs.progress import Mark
from isoloss_operator.decide.plans import Event
from isoloss_operator.planning.specs import InvalidSpec
from isoloss_operator.reconcile.intervals import status_pause
from isoloss_operator.reconcile.services import Services

Object = Mapping[str, Any]
Spec = TypeVar("Spec")


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
    stored: frozenset[str] = frozenset()
    """Names under points/ in the store, when they were last listed."""
    listed_at: float = -math.inf
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


def parsed(parse: Callable[[Object], Spec], body: Object) -> Spec | InvalidSpec:
    """The spec of an object, or everything that is wrong with it. Parsed here, once per pass."""
    try:
        return parse(body.get("spec") or {})
    except InvalidSpec as error:
        return error


def read_jobs(services: Services, owner: Owner, key: ResourceKey) -> LiveJobs:
    """The Jobs and pods as they are now; the watch must deliver them, too."""
    live = services.job_reader.read(owner)
    services.watchdog.read((key, JOB.kind), live.versions)
    return live


def carry_out(memory: Memory, generation: int, writes: Callable[[], None]) -> bool:
    """Do the writes of a plan; False where they failed in a way that the next pass must know of.

    Raises ClusterError where the API server did not answer: the queue then tries again.
    """
    try:
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

    Conditions are written at once; numbers alone as intervals.py says. Raises
    StatusChanged where `body` is no longer the newest.
    """
    document = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    before = body.get("status") or {}
    if document == before:
        return math.inf
    since_written = time.monotonic() - memory.written_at
    if wait := status_pause(before, document, since_written, services.settings):
        return wait
    try:
        services.cluster.apply_status(owner.kind, body["metadata"], document)
    except (NotFound, Conflict) as error:
        raise StatusChanged(f"{owner.kind.kind} {owner.name} changed meanwhile") from error
    memory.written_at = time.monotonic()
    send_events(services.cluster, owner, services.settings.identity, events)
    return math.inf
