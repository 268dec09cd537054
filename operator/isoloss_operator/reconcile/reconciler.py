"""One pass over a resource of either kind: observe, decide, apply, one status write.

Being killed anywhere in between is harmless: the ledger goes first, Jobs have deterministic names,
and the next pass reads everything again.
"""

from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

from isoloss_operator.cluster.client import JOB, Kind, Object, Refused, ResourceKey
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.observe import is_held
from isoloss_operator.decide.jobs import deletions
from isoloss_operator.decide.observation import ObservedResource
from isoloss_operator.decide.plans import PredictionPlan, SweepPlan
from isoloss_operator.reconcile.memory import (
    Memories,
    after_trouble,
    carry_out,
    had_trouble,
)
from isoloss_operator.reconcile.resource import Resource, Services
from isoloss_operator.reconcile.status_writes import (
    StatusChanged,
    next_look,
    reporting_failures,
    write_status,
)

Observed = TypeVar("Observed", bound=ObservedResource)
Plan = TypeVar("Plan", SweepPlan, PredictionPlan)


class Steps(Protocol[Observed, Plan]):
    """What a pass over one kind does."""

    kind: Kind

    def observe(self, resource: Resource) -> Observed:
        """Everything that the decision depends on. What the store does not say is a value in it."""

    def decide(self, observed: Observed) -> Plan:
        """Pure."""

    def apply(self, resource: Resource, observed: Observed, plan: Plan) -> None:
        """All writes but the status, in the order of plans.py. Raises StoreError, ClusterError."""

    def show(self, resource: Resource, observed: Observed, plan: Plan) -> None:
        """Metrics, once the status is written."""

    def forget(self, key: ResourceKey, uid: str) -> None:
        """The resource is gone."""


class Reconciler(Generic[Observed, Plan]):
    """Reconciles the resources of one kind by key; called by one worker per key at a time."""

    def __init__(self, services: Services, steps: Steps[Observed, Plan]) -> None:
        self._services = services
        self._steps: Steps[Observed, Plan] = steps
        self._memories = Memories()

    def __call__(self, key: ResourceKey) -> float | None:
        """Bring the world one step on; seconds until the next look, None once the resource is gone."""
        services, kind = self._services, self._steps.kind
        body = self._read(key)
        if body is None:
            self._forget(key)
            return None
        metadata = body["metadata"]
        owner = Owner(kind, key.namespace, key.name, metadata["uid"])
        if "deletionTimestamp" in metadata:
            if is_held(metadata):
                services.jobs.delete(owner, deletions(services.job_reader.read(owner).jobs))
            self._forget(key)
            return None
        services.watchdog.read(key, {owner.uid: metadata["resourceVersion"]})
        if namesake := self._memories.forget_other(key, owner.uid):
            services.job_reader.forget(namesake.uid)
            self._steps.forget(key, namesake.uid)
        resource = Resource(key, owner, body, self._memories.of(key, owner.uid))
        with reporting_failures(services, resource):
            return self._pass(resource)

    def _read(self, key: ResourceKey) -> Object | None:
        """The resource; None if there is none, or can be none: a Job may name anything as its owner."""
        try:
            body = self._services.cluster.get(key.kind, key.namespace, key.name)
        except Refused as error:
            if error.status == HTTPStatus.BAD_REQUEST:
                return None
            raise
        if body is None or body.get("kind") != key.kind.kind:
            return None
        return body if body["metadata"].get("name") == key.name else None

    def _pass(self, resource: Resource) -> float:
        services, steps, memory = self._services, self._steps, resource.memory
        was_in_trouble = had_trouble(memory)
        observed = steps.observe(resource)
        plan = steps.decide(observed)
        done = carry_out(
            memory, resource.generation, lambda: steps.apply(resource, observed, plan)
        )
        if not done and not was_in_trouble:
            # The status must not say that all is well: look again and let the decision explain it.
            return 0.0
        try:
            again = write_status(services, resource, plan.status.document(), plan.events)
        except StatusChanged:
            return 0.0
        steps.show(resource, observed, plan)
        look = next_look(plan.requeue_after, services.settings)
        return min(again, look, after_trouble(memory) if was_in_trouble else look)

    def _forget(self, key: ResourceKey) -> None:
        services, memory = self._services, self._memories.forget(key)
        services.watchdog.forget(key)
        services.watchdog.forget((key, JOB.kind))
        if memory is not None:
            services.job_reader.forget(memory.uid)
        self._steps.forget(key, memory.uid if memory else "")
