"""Which watch events cause a pass, and of what."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from kopf._cogs.clients.api import request

from isoloss_operator.cluster.client import PREDICTION, SWEEP, ResourceKey
from isoloss_operator.cluster.manifests import OWNER_ANNOTATION
from isoloss_operator.decide.jobs import FailureClass
from isoloss_operator.handlers import EventRouter, kopf_settings
from isoloss_operator.process import logs
from isoloss_operator.process.metrics import Metrics
from isoloss_operator.process.refused_watches import RefusedWatches
from isoloss_operator.process.sweep_load import SUCCEEDED
from isoloss_operator.process.watchdog import WatchDog
from isoloss_operator.process.workqueue import WorkQueue

SWEEP_KEY = ResourceKey(SWEEP, "research", "dense")
PREDICTION_KEY = ResourceKey(PREDICTION, "research", "dense-8b")
MODIFIED, DELETED = {"type": "MODIFIED"}, {"type": "DELETED"}


def sweep(generation: int = 1, ready: str = "False", **changes: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "reason": "Training", "message": "1/8 done"}
    status = {"observedGeneration": 1, "conditions": [condition], **changes.pop("status", {})}
    metadata = {
        "namespace": "research",
        "name": "dense",
        "uid": "u",
        "resourceVersion": "1",
        "generation": generation,
        **changes,
    }
    return {"metadata": metadata, "status": status}


def prediction() -> dict[str, Any]:
    metadata = {"namespace": "research", "name": "dense-8b", "uid": "p", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"sweepRef": {"name": "dense"}}}


class Router:
    """A router that has seen a sweep and its prediction, and whose queue is empty."""

    def __init__(self) -> None:
        # On a clock that stands, no key has to rest after its pass.
        self.queue: WorkQueue[ResourceKey] = WorkQueue(clock=lambda: 0.0)
        self.router = EventRouter(self.queue, WatchDog(), Metrics())
        self.router.resource(SWEEP, {"type": None}, sweep())
        self.router.resource(PREDICTION, {"type": None}, prediction())
        self.taken()

    def after(self, event: dict[str, Any], body: dict[str, Any]) -> set[ResourceKey]:
        self.router.resource(SWEEP, event, body)
        return self.taken()

    def taken(self) -> set[ResourceKey]:
        found = set()
        while self.queue.ready():
            key = self.queue.get()
            assert key is not None
            self.queue.done(key)
            found.add(key)
        return found


def test_what_is_listed_at_start_gets_a_pass() -> None:
    queue: WorkQueue[ResourceKey] = WorkQueue()
    EventRouter(queue, WatchDog(), Metrics()).resource(SWEEP, {"type": None}, sweep())
    assert queue.ready() == 1


@pytest.mark.parametrize(
    "progress",
    [
        {"estimatedCompletion": "2026-11-21T12:00:01Z"},
        {"progress": "2/8", "spentFlops": "1e18"},
        {"active": [{"name": "tiny"}]},
    ],
)
def test_progress_that_we_wrote_causes_no_pass_at_all(progress: dict[str, Any]) -> None:
    assert Router().after(MODIFIED, sweep(status=progress)) == set()


def test_a_list_that_is_read_again_causes_no_pass() -> None:
    assert Router().after({"type": None}, sweep(resourceVersion="2")) == set()


@pytest.mark.parametrize(
    "edit",
    [
        {"labels": {"team": "a"}},
        {"annotations": {"look": "again"}},
        {"managedFields": [{"manager": "us"}]},
    ],
)
def test_of_metadata_only_what_people_write_counts(edit: dict[str, Any]) -> None:
    wanted = set() if "managedFields" in edit else {SWEEP_KEY}
    assert Router().after(MODIFIED, sweep(**edit)) == wanted


@pytest.mark.parametrize(
    "turn",
    [
        sweep(ready="True"),
        sweep(status={"lawsSha256": "new"}),
        sweep(status={"observedGeneration": 2}),
    ],
    ids=["condition", "laws", "observed generation"],
)
def test_what_a_sweep_has_come_to_concerns_its_predictions_only(turn: dict[str, Any]) -> None:
    assert Router().after(MODIFIED, turn) == {PREDICTION_KEY}


@pytest.mark.parametrize(
    "event", [(MODIFIED, sweep(generation=2)), (DELETED, sweep()), (MODIFIED, sweep(uid="other"))]
)
def test_an_edit_a_deletion_and_a_namesake_concern_both(event: Any) -> None:
    assert Router().after(*event) == {SWEEP_KEY, PREDICTION_KEY}


def test_a_sweep_applied_again_after_its_deletion_gets_its_pass() -> None:
    router = Router()
    router.after(DELETED, sweep())
    assert router.after({"type": "ADDED"}, sweep()) == {SWEEP_KEY, PREDICTION_KEY}


def test_nothing_is_kept_of_predictions_that_are_gone() -> None:
    router = Router()
    router.router.resource(PREDICTION, {"type": "DELETED"}, prediction())
    assert not router.router._named_by


def test_sweep_and_prediction_that_name_each_other_are_queued_for_each_other() -> None:
    """The points around an answer follow it, and its verdict follows their results."""
    router = Router()
    probes = {"proxies": [{"grid": {"around": {"prediction": PREDICTION_KEY.name}}}, {}]}
    near = {**sweep(), "spec": probes, "metadata": {**sweep()["metadata"], "name": "near"}}
    near_key = ResourceKey(SWEEP, "research", "near")
    assert near_key in router.after({"type": "ADDED"}, near)
    router.router.resource(PREDICTION, DELETED, prediction())
    assert near_key in router.taken()
    judged = prediction()
    judged["spec"]["validation"] = {"sweepRef": {"name": "near"}}
    router.router.resource(PREDICTION, {"type": "ADDED"}, judged)
    router.taken()
    assert PREDICTION_KEY in router.after(DELETED, near)


def test_attempts_of_a_namespace_are_counted_from_zero_before_its_first_pass() -> None:
    """A counter that first appears at 20 says to Prometheus that nothing happened."""
    metrics = Metrics()
    router = EventRouter(WorkQueue(), WatchDog(), metrics)
    router.resource(SWEEP, {"type": None}, sweep())
    metrics.attempts.labels("research", "Crashed").inc(20)
    router.resource(SWEEP, MODIFIED, sweep(generation=2))
    (family,) = metrics.attempts.collect()
    counted = {
        (each.labels["namespace"], each.labels["class"]): each.value for each in family.samples
    }
    assert counted == {
        ("research", kind): 20 if kind == "Crashed" else 0 for kind in (*FailureClass, SUCCEEDED)
    }


def job_event(owner: str) -> dict[str, Any]:
    metadata = {"namespace": "research", "name": "job", "uid": "j", "resourceVersion": "1"}
    return {"metadata": {**metadata, "annotations": {OWNER_ANNOTATION: owner}}}


@pytest.mark.parametrize(
    "name",
    ["%", "..", ".", "x/status", "", "a b", "Dense", "-a", "a-", "a..b", "x" * 254, "a\n"],
)
@pytest.mark.parametrize("kind", ["ScalingSweep", "HyperparamPrediction"])
def test_a_job_that_names_an_owner_that_cannot_be_queues_nothing(kind: str, name: str) -> None:
    """Whoever may write Jobs could fill the queue with names that nothing ever takes from it."""
    router = Router()
    router.router.job(MODIFIED, job_event(f"{kind}/{name}"))
    assert router.taken() == set()


@pytest.mark.parametrize("name", ["dense", "a", "0", "a.b-c.d", "x" * 253])
def test_a_job_queues_its_owner(name: str) -> None:
    router = Router()
    router.router.job(MODIFIED, job_event(f"ScalingSweep/{name}"))
    assert router.taken() == {ResourceKey(SWEEP, "research", name)}
    router.router.job(MODIFIED, job_event(f"Sweep/{name}"))
    router.router.job(MODIFIED, {"metadata": {**job_event("")["metadata"], "annotations": None}})
    assert router.taken() == set()


class Forbidding:
    """A session whose first answers are 403."""

    closed = False

    def __init__(self, refusals: int) -> None:
        self._left = refusals

    async def request(self, **_: Any) -> Any:
        self._left -= 1
        return answer(403 if self._left >= 0 else 200)


def answer(status: int) -> Any:
    async def json() -> Any:
        return {"kind": "Status", "code": status}

    def raise_for_status() -> None:
        raise aiohttp.ClientResponseError(Any, (), status=status)  # type: ignore[arg-type]

    return SimpleNamespace(status=status, headers={}, json=json, raise_for_status=raise_for_status)


def test_a_watch_that_is_refused_is_tried_for_ever_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If one ended, so would the process, and with it the watches of all other namespaces."""
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    logger, settings = logging.getLogger(logs.KOPF_REQUESTS), kopf_settings()
    monkeypatch.setattr(logger, "filters", [logs.is_news])
    for watch in range(1, 3):
        context = SimpleNamespace(server="https://api", session=Forbidding(200))
        got = asyncio.run(
            request("get", "/jobs", settings=settings, context=context, logger=logger)  # type: ignore[arg-type]
        )
        assert got.status == 200
        assert len(delays) == 200 * watch
        assert delays[-200] == 1.0, "each begins with short delays"
    assert max(delays) == 5.0
    words = [record for record in caplog.records if "APIForbiddenError" in record.message]
    assert len(words) == 2, "once for each"


def test_a_refused_watch_is_told_of_its_namespace_until_all_its_watches_are_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    watches = RefusedWatches(metrics.watch_refused, ["a", "b"])

    def refused() -> dict[str, float]:
        (family,) = metrics.watch_refused.collect()
        return {sample.labels["namespace"]: sample.value for sample in family.samples}

    assert refused() == {"a": 0, "b": 0}
    for _ in range(3):
        watches.answered("a", "jobs", 403)
        watches.answered("a", "scalingsweeps", 403)
        watches.answered("b", "jobs", 200)
    assert refused() == {"a": 1, "b": 0}
    watches.answered("a", "jobs", 200)
    watches.answered("a", "scalingsweeps", 503)
    assert refused() == {"a": 1, "b": 0}
    watches.answered("a", "scalingsweeps", 200)
    assert refused() == {"a": 0, "b": 0}
    refusal, permission = (record.message for record in caplog.records)
    assert "refuses the watch of jobs in namespace a." in refusal
    assert "namespace a again" in permission


def test_an_operator_of_all_namespaces_that_is_refused_says_so_of_all() -> None:
    metrics = Metrics()
    RefusedWatches(metrics.watch_refused, []).answered("", "jobs", 403)
    assert b'isoloss_watch_refused{namespace="*"} 1.0' in metrics.page()
