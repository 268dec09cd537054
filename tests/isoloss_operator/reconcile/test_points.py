"""What ended is counted once, whatever the store says of the write that records it; what the store does not say is no
lack of progress."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Newer, Read, Unanswered
from isoloss_contract.records import PointProgress
from isoloss_contract.store import StoreUnavailable
from isoloss_operator.cluster.client import SWEEP, ResourceKey
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.observation import PointReads
from isoloss_operator.decide.plans import Quarantine, TaskWrites
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.process.metrics import Metrics
from isoloss_operator.reconcile.memory import Memory
from isoloss_operator.reconcile.points import hold_marks, read_points, store_points
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.settings import Settings
from tests.support.builders import NOW, after, failed, job, observed, points, progress

POINTS = points()
OWNER = Owner(SWEEP, "research", "dense", "uid")


@dataclass
class Shell:
    """A store that takes ledgers, and may say that it did not; what is counted meanwhile."""

    stored: Read[Ledger] = ABSENT
    answers: bool = True
    takes: bool = True
    metrics: Metrics = field(default_factory=Metrics)
    memory: Memory = field(default_factory=lambda: Memory("uid"))

    def write(self, _uri: str, _folder: str, ledger: Ledger) -> None:
        if self.takes:
            self.stored = ledger
        if not self.answers:
            raise StoreUnavailable("no answer")

    def quarantine(self, _uri: str, _request: Quarantine) -> None:
        raise StoreUnavailable("no answer")

    def store(self, ledger: Ledger | None, *aside: Quarantine) -> None:
        services: Any = SimpleNamespace(ledgers=self, storage=self, metrics=self.metrics)
        key = ResourceKey(SWEEP, "research", "dense")
        resource = Resource(key, OWNER, {}, self.memory)
        writes = TaskWrites(ledger=ledger, quarantined=aside)
        store_points(services, resource, "s3://b", "f", self.stored, writes)

    def counted(self) -> float:
        labels = {"namespace": "research", "class": "Crashed"}
        value = self.metrics.registry.get_sample_value("isoloss_attempts_ended_total", labels)
        return value or 0.0


def ledgers() -> tuple[Ledger, Ledger]:
    """Before and after two attempts crashed."""
    started = observed()
    plan = decide_sweep(started)
    crashed = (failed(POINTS[0], 1), failed(POINTS[1], 1))
    ended = decide_sweep(after(started, plan, jobs=crashed))
    assert plan.ledger is not None
    assert ended.ledger is not None
    return plan.ledger, ended.ledger


@pytest.mark.parametrize("takes", [True, False])
def test_what_a_write_without_an_answer_recorded_or_not_is_counted_by_the_next_pass(
    takes: bool,
) -> None:
    before, ended = ledgers()
    shell = Shell()
    shell.store(before)
    shell.answers, shell.takes = False, takes
    with pytest.raises(StoreUnavailable):
        shell.store(ended)
    assert shell.counted() == 0.0
    shell.answers = shell.takes = True
    shell.store(None if takes else ended)
    assert shell.counted() == 2.0
    shell.store(None)
    assert shell.counted() == 2.0


@pytest.mark.parametrize("takes", [True, False])
def test_a_store_that_gives_no_ledger_out_meanwhile_changes_nothing_of_that(takes: bool) -> None:
    """Neither is what ended forgotten, nor the whole ledger counted once it is there again."""
    before, ended = ledgers()
    shell = Shell(stored=before)
    shell.answers, shell.takes = False, takes
    with pytest.raises(StoreUnavailable):
        shell.store(ended)
    known, shell.stored = shell.stored, Unanswered("slow")
    shell.answers = shell.takes = True
    shell.store(None)
    assert shell.counted() == 0.0
    shell.stored = known
    shell.store(None if takes else ended)
    assert shell.counted() == 2.0


def test_what_cannot_be_quarantined_while_the_ledger_is_not_given_out_has_nothing_counted() -> (
    None
):
    _, ended = ledgers()
    shell = Shell(stored=Unanswered("slow"))
    with pytest.raises(StoreUnavailable):
        shell.store(None, Quarantine("points/k/result.json", "bad"))
    shell.stored = ended
    shell.store(None)
    assert shell.counted() == 0.0


def test_what_ended_before_this_process_began_is_not_counted_again() -> None:
    before, ended = ledgers()
    shell = Shell(stored=ended)
    shell.store(None)
    assert shell.counted() == 0.0
    shell = Shell(stored=before)
    shell.store(ended)
    assert shell.counted() == 2.0


def marks_after(memory: Memory, read: Read[PointProgress], minutes: int) -> datetime | None:
    """Since when the point has reported nothing new, if the store says this of it now."""
    now = NOW + timedelta(minutes=minutes)
    storage = SimpleNamespace(progress=lambda *_: {POINTS[0].key: read}, results=lambda *_: {})
    services: Any = SimpleNamespace(storage=storage, settings=Settings(trainer_image="i"))
    running = job(POINTS[0], working_since=NOW)
    found = read_points(services, memory, "s3://b", PointReads(), [running], now)
    return found.unchanged_since.get(running.uid)


def test_what_the_store_does_not_give_out_is_not_taken_for_no_progress() -> None:
    read = {"a": Unanswered("SlowDown"), "b": ABSENT, "c": progress(POINTS[0], 100)}
    storage = SimpleNamespace(progress=lambda *_: read, results=lambda *_: {})
    services: Any = SimpleNamespace(storage=storage, settings=Settings(trainer_image="i"))
    found = read_points(services, Memory("uid"), "s3://b", PointReads(), [], NOW)
    assert found.progress == {"c": read["c"]}


def test_an_attempt_whose_progress_the_store_does_not_give_out_is_not_taken_for_hung() -> None:
    memory, reported = Memory("uid"), progress(POINTS[0], 100)
    marks_after(memory, reported, 0)
    assert marks_after(memory, Unanswered("AccessDenied"), 90) == NOW + timedelta(minutes=90)
    assert marks_after(memory, Newer("of version 9"), 95) == NOW + timedelta(minutes=95)
    hold_marks(memory, NOW + timedelta(minutes=190))
    assert marks_after(memory, reported, 191) == NOW + timedelta(minutes=190)
    for minutes in (221, 251):  # no look counts more than half an hour
        assert marks_after(memory, reported, minutes) == NOW + timedelta(minutes=190)
