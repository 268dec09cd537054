"""Events of attempts that ended reach people whatever becomes of the pass that recorded the end."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from isoloss_operator.cluster.client import SWEEP, ResourceKey
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.transport import ServerClock
from isoloss_operator.decide.plans import Event
from isoloss_operator.process.watchdog import WatchDog
from isoloss_operator.reconcile.memory import MAX_UNSENT, Memory
from isoloss_operator.reconcile.reconciler import Reconciler
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.status_writes import write_status
from isoloss_operator.reconcile.sweep import SweepSteps
from tests.support.builders import UID
from tests.support.simulated_services import services_of
from tests.support.simulator import Simulator

KEY = ResourceKey(SWEEP, "research", "demo")
OWNER = Owner(SWEEP, "research", "demo", UID)


@dataclass
class Recorded(Simulator):
    """A sweep whose events and statuses reach an API server that keeps them."""

    events: list[tuple[str, str]] = field(default_factory=list)

    def sweep(self, _name: str) -> Mapping[str, Any]:
        """The sweep itself."""
        metadata = {"name": "demo", "uid": UID, "generation": self.generation}
        metadata["resourceVersion"] = "1"
        return {
            "kind": "ScalingSweep", "metadata": metadata, "spec": self.spec, "status": self.status
        }  # fmt: skip

    def services(self) -> Any:
        found = services_of(self)
        found.watchdog, found.cluster.create = WatchDog(), self._create
        found.cluster.clock, found.cluster.apply_status = ServerClock(), self._apply_status
        return found

    def _create(self, _kind: object, _namespace: str, body: Mapping[str, Any]) -> None:
        self.events.append((body["type"], body["reason"]))

    def _apply_status(self, _kind: object, _metadata: object, status: dict[str, Any]) -> None:
        self.status = status


@pytest.mark.parametrize("refusal", ["exceeded quota", ""])
def test_an_attempt_that_ends_is_told_of_once_whether_or_not_its_successor_is_refused(
    refusal: str,
) -> None:
    """In the same pass, which the refusal ends; in a quiet one it is not sent with the ledger and with the status."""
    simulator = Recorded()
    simulator.run_operator()
    simulator.let_time_pass(60.0)
    simulator.end(simulator.at_work[0], "crash")
    simulator.refuses_jobs = refusal
    services = simulator.services()
    reconcile = Reconciler(services, SweepSteps(services))
    for _ in range(4):
        reconcile(KEY)
    assert simulator.events.count(("Warning", "Crashed")) == 1
    assert bool(refusal) == (("Warning", "JobRefused") in simulator.events)


def test_what_ended_while_the_status_may_not_be_written_yet_is_told_with_the_next() -> None:
    simulator, memory = Recorded(), Memory(UID)
    services = simulator.services()
    status = simulator.run_operator().status
    memory.written_at = time.monotonic()
    body = {"metadata": {"generation": 1}, "status": status.document()}
    resource = Resource(KEY, OWNER, body, memory)
    crashed = (Event("Warning", "Crashed", "An attempt of tiny-b8-lr1e-3 ended"),)
    more = status.model_copy(update={"spent_flops": "1e9"}).document()
    assert write_status(services, resource, more, crashed) > 0.0
    assert simulator.events == []
    memory.written_at = 0.0
    write_status(services, resource, more, ())
    assert simulator.events == [("Warning", "Crashed")]
    newer = replace(resource, body={**body, "status": simulator.status})
    write_status(services, newer, more, ())
    assert simulator.events == [("Warning", "Crashed")]


def test_events_that_cannot_be_sent_for_long_do_not_pile_up() -> None:
    memory = Memory(UID)
    for count in range(2 * MAX_UNSENT):
        memory.owe([Event("Warning", "Crashed", f"An attempt of point {count} ended")])
    assert len(memory.unsent) == MAX_UNSENT
    assert f"{2 * MAX_UNSENT - 1} ended" in memory.unsent[-1].message
