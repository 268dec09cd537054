"""What a pass works with: services made once at start, and a resource of either kind with what is known of it before anything
is asked of the store."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import isoloss
from isoloss_operator.api import HyperparamPredictionSpec, ScalingSweepSpec
from isoloss_operator.cluster.client import JOB, Cluster, ResourceKey
from isoloss_operator.cluster.jobs import JobWriter
from isoloss_operator.cluster.json_depth import UNREADABLE, too_deep
from isoloss_operator.cluster.live_jobs import JobReader, LiveJobs
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.observation import ObservedJob, ObservedResource
from isoloss_operator.fitting.fitter import Fitter
from isoloss_operator.planning.specs import InvalidSpec, SpecError
from isoloss_operator.process.metrics import Metrics
from isoloss_operator.process.watchdog import WatchDog
from isoloss_operator.process.workqueue import WorkQueue
from isoloss_operator.reconcile.memory import Memory, create_error, stop, tolerated
from isoloss_operator.settings import Settings
from isoloss_operator.store.ledgers import Ledgers
from isoloss_operator.store.storage import Storage

Object = Mapping[str, Any]
Spec = TypeVar("Spec")


@dataclass(frozen=True)
class Services:
    """Everything is thread-safe and shared by all workers."""

    settings: Settings
    cluster: Cluster
    storage: Storage
    ledgers: Ledgers
    jobs: JobWriter
    job_reader: JobReader
    fitter: Fitter[ResourceKey]
    metrics: Metrics
    watchdog: WatchDog
    queue: WorkQueue[ResourceKey]


@dataclass(frozen=True)
class Resource:
    """A resource as it was read, and what former passes remember of it."""

    key: ResourceKey
    owner: Owner
    body: Object
    memory: Memory

    @property
    def namespace(self) -> str:
        """Where it is."""
        return self.owner.namespace

    @property
    def generation(self) -> int:
        """Generation of its spec."""
        return int(self.body["metadata"]["generation"])


def parsed(parse: Callable[[Object], Spec], body: Object) -> Spec | InvalidSpec:
    """The spec of an object, or everything that is wrong with it. Parsed here, once per pass."""
    spec = body.get("spec") or {}
    problem = body.get(UNREADABLE) or too_deep(spec)
    try:
        if problem:
            raise InvalidSpec([SpecError("spec", problem)])
        return parse(spec)
    except InvalidSpec as invalid:
        error = invalid
    if any(each.is_unknown for each in error.errors):
        error = InvalidSpec([_other_crds(), *error.errors])
    error.suspend = suspends(body)
    return error


def _other_crds() -> SpecError:
    """The API server drops what its CRDs do not know, and sets defaults that nobody wrote."""
    message = f"the installed CRDs are of another version than this operator, {isoloss.__version__}: upgrade both to one version"
    return SpecError("spec", message)


def suspends(body: Object) -> bool:
    """Whether its spec asks for suspension, be it valid or not."""
    return (body.get("spec") or {}).get("suspend") is True


def first_look(
    services: Services,
    resource: Resource,
    parse: Callable[[Object], ScalingSweepSpec | HyperparamPredictionSpec],
) -> ObservedResource:
    """Read its Jobs, and stop them if it is suspended, before anything else that could fail."""
    owner, body, memory = resource.owner, resource.body, resource.memory
    live = services.job_reader.read(owner)
    services.watchdog.read(
        (resource.key, JOB.kind), live.versions
    )  # the watch must deliver them, too
    stopped = _stopped(services, resource, live) if suspends(body) else memory.stopped
    return ObservedResource(
        name=owner.name,
        namespace=owner.namespace,
        uid=owner.uid,
        generation=resource.generation,
        now=services.cluster.clock.now(),
        spec=parsed(parse, body),
        status=body.get("status") or {},
        jobs=live.jobs,
        stopped=stopped,
        orphaned_pods=live.orphaned_pods,
        orphans=live.orphans,
        operator_template=services.settings.template_digest,
        create_error=create_error(memory, resource.generation),
        refusal_may_pass=memory.refusal_may_pass,
        lost_ledger=memory.lost_ledger,
        store_write_error=memory.store_write_error,
        write_error=memory.write_error,
    )


def _stopped(services: Services, resource: Resource, live: LiveJobs) -> tuple[ObservedJob, ...]:
    """Stop all Jobs; those that no ledger is known to have."""
    memory, now = resource.memory, services.cluster.clock.now()
    delete, memory.stopped = stop(live.jobs, memory.stopped, now)
    tolerated(memory, lambda: services.jobs.delete(resource.owner, delete))
    return memory.stopped
