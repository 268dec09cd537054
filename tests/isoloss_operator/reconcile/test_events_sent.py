"""Events of attempts that ended reach people whatever becomes of the pass that recorded the end."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from isoloss_contract.ledger import Ledger
from isoloss_operator.cluster.client import SWEEP, ResourceKey
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.transport import ServerClock
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.plans import Event, JobRequest, SweepPlan
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.process.metrics import Metrics
from isoloss_operator.process.watchdog import WatchDog
from isoloss_operator.reconcile.memory import MAX_UNSENT, Folder, Memory, create_error
from isoloss_operator.reconcile.reconciler import Reconciler
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.status_writes import write_status
from isoloss_operator.reconcile.sweep import SweepSteps
from isoloss_operator.settings import Settings
from tests.support.builders import UID, after, failed, job, observed, points
from tests.support.ledgers import read_back

POINTS = points()
KEY = ResourceKey(SWEEP, "research", "demo")
OWNER = Owner(SWEEP, "research", "demo", UID)


@dataclass
class Place:
    """A sweep in an API server and a store that take everything but Jobs."""

    world: ObservedSweep
    jobs: tuple[ObservedJob, ...]
    refuses: bool = False
    events: list[tuple[str, str]] = field(default_factory=list)
    status: Mapping[str, Any] = field(default_factory=dict)
    clock: ServerClock = field(default_factory=ServerClock)

    def get(self, *_: object) -> dict[str, Any]:
        metadata = {"name": "demo", "namespace": "research", "uid": UID, "generation": 1}
        metadata["resourceVersion"] = "1"
        return {"kind": "ScalingSweep", "metadata": metadata, "status": self.status}

    def apply_status(self, _kind: object, _metadata: object, status: dict[str, Any]) -> None:
        self.status = status

    def create(self, _kind: object, _namespace: str, body: Mapping[str, Any]) -> None:
        self.events.append((body["type"], body["reason"]))

    def write(self, _uri: str, _folder: str, ledger: Ledger) -> None:
        self.world = replace(self.world, ledger=read_back(ledger))

    def delete(self, *_: object) -> None:
        pass

    expire = delete

    def create_jobs(self, _owner: Owner, requests: tuple[JobRequest, ...]) -> None:
        if requests and self.refuses:
            raise CreateRefused("exceeded quota", may_pass=True)

    @property
    def services(self) -> Any:
        jobs = SimpleNamespace(delete=self.delete, expire=self.delete, create=self.create_jobs)
        settings = Settings(trainer_image="i")
        parts = {"cluster": self, "ledgers": self, "metrics": Metrics(), "settings": settings}
        return SimpleNamespace(**parts, jobs=jobs, watchdog=WatchDog(), job_reader=None)


class Steps(SweepSteps):
    """Those of a sweep, with what is observed given."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.services)
        self.place = place

    def observe(self, resource: Resource) -> ObservedSweep:
        refusal = create_error(resource.memory, 1)
        world = replace(self.place.world, jobs=self.place.jobs, create_error=refusal)
        return replace(world, status=self.place.status, refusal_may_pass=True)

    def folder(self, observed: ObservedSweep) -> Folder | None:
        return None

    def show(self, resource: Resource, observed: ObservedSweep, plan: SweepPlan) -> None:
        pass


def training() -> ObservedSweep:
    world = observed()
    return after(world, decide_sweep(world))


def test_an_attempt_whose_successor_is_refused_in_the_same_pass_is_told_of_once() -> None:
    place = Place(training(), (failed(POINTS[0], 1), job(POINTS[1]), job(POINTS[2])), refuses=True)
    reconcile = Reconciler(place.services, Steps(place))
    for _ in range(4):
        reconcile(KEY)
    assert place.events.count(("Warning", "Crashed")) == 1


def test_an_attempt_that_ends_in_a_quiet_pass_is_told_of_once() -> None:
    """Nothing is refused: the event is neither lost nor sent with the ledger and with the status."""
    place = Place(training(), (failed(POINTS[0], 1), job(POINTS[1]), job(POINTS[2])))
    reconcile = Reconciler(place.services, Steps(place))
    for _ in range(4):
        reconcile(KEY)
    assert place.events.count(("Warning", "Crashed")) == 1


def test_what_ended_while_the_status_may_not_be_written_yet_is_told_with_the_next() -> None:
    place, memory = Place(training(), ()), Memory(UID)
    status = decide_sweep(place.world).status
    memory.written_at = time.monotonic()
    body = {"metadata": {"generation": 1}, "status": status.document()}
    resource = Resource(KEY, OWNER, body, memory)
    crashed = (Event("Warning", "Crashed", "An attempt of tiny-b8-lr1e-3 ended"),)
    more = status.model_copy(update={"spent_flops": "1e9"}).document()
    assert write_status(place.services, resource, more, crashed) > 0.0
    assert place.events == []
    memory.written_at = 0.0
    write_status(place.services, resource, more, ())
    assert place.events == [("Warning", "Crashed")]
    newer = replace(resource, body={**body, "status": place.status})
    write_status(place.services, newer, more, ())
    assert place.events == [("Warning", "Crashed")]


def test_events_that_cannot_be_sent_for_long_do_not_pile_up() -> None:
    memory = Memory(UID)
    for count in range(2 * MAX_UNSENT):
        memory.owe([Event("Warning", "Crashed", f"An attempt of point {count} ended")])
    assert len(memory.unsent) == MAX_UNSENT
    assert f"{2 * MAX_UNSENT - 1} ended" in memory.unsent[-1].message
