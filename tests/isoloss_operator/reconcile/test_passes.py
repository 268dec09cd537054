"""What a pass remembers of refused writes, and what it says when it fails in an unforeseen way."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from isoloss_contract.reading import ABSENT, Read, Unanswered
from isoloss_contract.records import PointResult
from isoloss_contract.store import StoreUnavailable, WriteConflict
from isoloss_operator.cluster.client import SWEEP, Refused, ResourceKey, Unavailable
from isoloss_operator.cluster.jobs import CreateRefused, NotCreated
from isoloss_operator.cluster.live_jobs import LiveJobs
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.transport import ServerClock
from isoloss_operator.planning.specs import parse_sweep_spec
from isoloss_operator.process.watchdog import WatchDog
from isoloss_operator.reconcile.memory import (
    CONFLICTS,
    UNANSWERED_PASSES,
    Memory,
    after_trouble,
    carry_out,
    had_trouble,
    tolerated,
)
from isoloss_operator.reconcile.points import results_of_failed
from isoloss_operator.reconcile.reconciler import Reconciler
from isoloss_operator.reconcile.resource import Resource, first_look, parsed
from isoloss_operator.reconcile.status_writes import reporting_failures
from isoloss_operator.settings import Settings
from tests.support.builders import job, points, stated, sweep_spec

KEY = ResourceKey(SWEEP, "research", "dense")
OWNER = Owner(SWEEP, "research", "dense", "uid")
BODY: dict[str, Any] = {"metadata": {"name": "dense", "namespace": "research", "generation": 3}}


def failing(error: Exception) -> Callable[[], None]:
    def write() -> None:
        raise error

    return write


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (StoreUnavailable("quota exceeded"), "store_write_error"),
        (CreateRefused("bad template"), "create_error"),
    ],
)
def test_a_refused_write_is_remembered_until_it_succeeds(error: Exception, field: str) -> None:
    memory = Memory("uid")
    assert not carry_out(memory, 1, failing(error))
    assert getattr(memory, field) == str(error)
    assert after_trouble(memory) == math.inf
    memory.create_error = ""  # as the creation of a Job does
    assert carry_out(memory, 1, lambda: None)
    assert not had_trouble(memory)
    assert after_trouble(memory) == 1.0, "the conditions should soon say that it is over"


def test_a_write_of_another_process_is_no_trouble_but_asks_for_another_look() -> None:
    memory = Memory("uid")
    assert not carry_out(memory, 1, failing(WriteConflict("ledger.jsonl.gz")))
    assert not had_trouble(memory)


def test_a_ledger_that_is_another_each_time_is_told_of() -> None:
    """As behind a proxy that changes ETags: pass would follow pass for ever, and nothing said so."""
    memory = Memory("uid")
    conflict = failing(WriteConflict("ledger.jsonl.gz: another has written it"))
    for _ in range(CONFLICTS):
        assert not had_trouble(memory)
        carry_out(memory, 1, conflict)
    assert had_trouble(memory)
    assert memory.store_write_error.startswith("ledger.jsonl.gz: another has written it, 5 times")
    assert "ETag" in memory.store_write_error
    carry_out(memory, 1, conflict)
    assert memory.store_write_error.startswith("ledger.jsonl.gz: another has written it, 5 times")
    assert carry_out(memory, 1, lambda: None)
    carry_out(memory, 1, conflict)
    assert not had_trouble(memory)


def test_while_a_webhook_for_jobs_is_down_all_else_is_shown() -> None:
    """Points that had ended used to be training for as long as it was."""
    memory = Memory("uid")
    down = failing(NotCreated('POST jobs: 500 failed calling webhook "x"', 500))
    with pytest.raises(Unavailable):
        carry_out(memory, 1, down)
    memory.unanswered = UNANSWERED_PASSES
    assert not carry_out(memory, 1, down)
    assert (had_trouble(memory), memory.refusal_may_pass) == (True, True)
    memory.unanswered = 0  # that pass has come to its end
    assert not carry_out(memory, 1, down)
    assert 'webhook "x"' in memory.create_error


def test_a_job_that_a_former_spec_was_refused_is_no_trouble_of_the_present_one() -> None:
    """It would keep the pass that finds all else well again from being followed by another for ten minutes."""
    memory = Memory("uid")
    assert not carry_out(memory, 1, failing(CreateRefused("no such priority class")))
    assert not carry_out(memory, 2, failing(StoreUnavailable("503")))
    assert carry_out(memory, 2, lambda: None)
    assert not had_trouble(memory)
    assert after_trouble(memory) == 1.0


def test_a_tolerated_refusal_lets_the_other_writes_happen_and_is_remembered() -> None:
    memory, done = Memory("uid"), []

    def writes() -> None:
        tolerated(memory, failing(Refused("PATCH jobs/a: 403 forbidden", 403)))
        done.append("created")

    assert not carry_out(memory, 1, writes)
    assert done == ["created"]
    assert "403" in memory.write_error


def test_an_api_server_that_does_not_answer_is_the_queues_business() -> None:
    with pytest.raises(Unavailable):
        carry_out(Memory("uid"), 1, lambda: tolerated(Memory("uid"), failing(Unavailable("away"))))


def test_results_of_failed_points_are_read_once_in_a_while() -> None:
    memory, reads = Memory("uid", failed_read_at=0), []

    def read() -> dict[str, Read[PointResult]]:
        reads.append(len(reads))
        return {"key": ABSENT}

    for now in (59, 60, 119, 120, 121):
        results_of_failed(memory, read, 60, lambda now=now: now)  # type: ignore[misc]
    assert len(reads) == 2


def test_what_the_store_did_not_answer_is_read_again_by_the_next_pass() -> None:
    memory, unanswered = Memory("uid", failed_read_at=0), Unanswered("slow")
    for now in (60, 61):
        found = results_of_failed(memory, lambda: {"key": unanswered}, 60, lambda now=now: now)  # type: ignore[misc]
        assert found == {"key": unanswered}
    assert results_of_failed(memory, lambda: {"key": ABSENT}, 60, lambda: 62) == {"key": ABSENT}
    assert results_of_failed(memory, lambda: {"key": ABSENT}, 60, lambda: 63) == {}


NAMELESS = {"kind": "ScalingSweepList", "metadata": {"resourceVersion": "7"}, "items": []}
OTHER = {"kind": "ScalingSweep", "metadata": {"name": "other", "uid": "u", "generation": 1}}


@pytest.mark.parametrize("answer", [None, NAMELESS, OTHER, Refused("GET x%: 400", 400)])
def test_a_key_whose_resource_cannot_be_is_dropped(answer: Any) -> None:
    """A Job may name anything as its owner, and a name that is a path reads something else."""
    assert pass_over(answer) is None


@pytest.mark.parametrize("error", [Refused("GET: 403 forbidden", 403), Unavailable("away")])
def test_a_key_whose_resource_could_not_be_read_is_tried_again(error: Exception) -> None:
    with pytest.raises(type(error)):
        pass_over(error)


def pass_over(answer: Any) -> float | None:
    """A pass whose first read is answered so, and which comes no further."""

    def get(*_: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    services: Any = SimpleNamespace(
        cluster=SimpleNamespace(get=get), watchdog=WatchDog(), job_reader=None
    )
    steps: Any = SimpleNamespace(kind=SWEEP, forget=lambda _key, _uid: None)
    return Reconciler(services, steps)(ResourceKey(SWEEP, "research", "x"))


def with_a_job(cluster: Any) -> tuple[Any, list[str]]:
    """Services that find one Job, and the names of those that are deleted."""
    deleted: list[str] = []
    return SimpleNamespace(
        cluster=cluster,
        watchdog=WatchDog(),
        job_reader=SimpleNamespace(read=lambda _: LiveJobs((job(points()[0]),), (), (), {})),
        jobs=SimpleNamespace(delete=lambda _, jobs: deleted.extend(each.name for each in jobs)),
    ), deleted


@pytest.mark.parametrize(
    ("finalizers", "stops"),
    [
        (["example.com/audit"], True),
        (["foregroundDeletion", "example.com/audit"], True),
        (["foregroundDeletion"], False),
        (["example.com/audit", "orphan"], False),
    ],
)
def test_the_jobs_of_a_deleted_sweep_that_a_finalizer_keeps_are_stopped(
    finalizers: list[str], stops: bool
) -> None:
    """Kubernetes deletes them only once the sweep is gone: they used to train on for nobody."""
    marks = {"uid": "u", "deletionTimestamp": "2026-11-24T12:00:00Z", "finalizers": finalizers}
    body = {"kind": "ScalingSweep", "metadata": {**BODY["metadata"], **marks}}
    services, deleted = with_a_job(SimpleNamespace(get=lambda *_: body))
    steps: Any = SimpleNamespace(kind=SWEEP, forget=lambda _key, _uid: None)
    assert Reconciler(services, steps)(KEY) is None
    assert deleted == ([job(points()[0]).name] if stops else [])


def test_a_pass_that_fails_by_a_bug_has_stopped_the_jobs_of_a_suspended_resource() -> None:
    """Its user asked for no more than that they stop."""
    services, deleted = with_a_job(SimpleNamespace(clock=ServerClock()))

    def bug(_: object) -> Any:
        raise KeyError("heads")

    resource = Resource(KEY, OWNER, {**BODY, "spec": {"suspend": True}}, Memory("uid"))
    with pytest.raises(KeyError):
        first_look(services, resource, bug)
    assert deleted == [job(points()[0]).name]


def test_a_field_that_only_newer_crds_can_have_let_pass_blames_them() -> None:
    """Nobody may have written it: the API server sets defaults of fields that an older operator does not know."""
    spec = {**sweep_spec(), "novel": "by default"}
    found = parsed(parse_sweep_spec, {"spec": spec})
    assert str(found).startswith("spec: the installed CRDs are of another version than this")
    assert "spec.novel: is not a field of this resource" in str(found)
    wrong = parsed(parse_sweep_spec, {"spec": {**sweep_spec(), "parallelism": 0}})
    assert "CRDs" not in str(wrong)


class RecordingCluster:
    """Takes statuses, or refuses them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.clock = ServerClock()
        self.statuses: list[dict[str, Any]] = []
        self._error = error

    def apply_status(self, _kind: object, _metadata: object, status: dict[str, Any]) -> None:
        if self._error is not None:
            raise self._error
        self.statuses.append(status)

    def ready(self) -> dict[str, Any]:
        """The condition of the only status."""
        (status,) = self.statuses
        assert status["observedGeneration"] == 3
        return next(each for each in status["conditions"] if each["type"] == "Ready")


def fail_a_pass(
    cluster: RecordingCluster,
    error: Exception | None,
    memory: Memory | None = None,
    body: dict[str, Any] = BODY,
) -> None:
    services: Any = SimpleNamespace(cluster=cluster, settings=Settings(trainer_image="i"))
    resource = Resource(KEY, OWNER, body, memory or Memory("uid"))
    with reporting_failures(services, resource):
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (KeyError("phase"), "InternalError", "KeyError: 'phase'. This is a bug in the operator"),
        (Refused("GET jobs: 403", 403), "RequestRefused", "GET jobs: 403; tried again."),
    ],
    ids=["a bug", "somebody took a right from the operator's Role"],
)
def test_an_error_that_ends_a_pass_becomes_a_condition_and_goes_on_to_the_queue(
    error: Exception, reason: str, says: str
) -> None:
    cluster = RecordingCluster()
    with pytest.raises(type(error)):
        fail_a_pass(cluster, error)
    assert cluster.ready()["reason"] == reason
    assert says in cluster.ready()["message"]


class CautiousCluster(RecordingCluster):
    """Refuses every status that says more than conditions."""

    def apply_status(self, kind: object, metadata: object, status: dict[str, Any]) -> None:
        if status.keys() - {"observedGeneration", "conditions"}:
            raise Refused("PATCH status: 422 progress: Too long", 422)
        super().apply_status(kind, metadata, status)


def test_conditions_are_written_where_the_rest_of_the_status_is_refused() -> None:
    """Ready does not stand over values that are not there any more."""
    cluster = CautiousCluster()
    ready = stated("Ready", "True", "Predicted", observedGeneration=3)
    body = {**BODY, "status": {"progress": "x" * 2000, "conditions": [ready]}}
    error = Refused("PATCH status: 422 progress: Too long", 422)
    with pytest.raises(Refused):
        fail_a_pass(cluster, error, body=body)
    found = cluster.ready()
    assert (found["status"], found["reason"]) == ("False", "RequestRefused")
    assert "422 progress: Too long" in found["message"]


def test_an_expected_error_is_no_bug() -> None:
    cluster = RecordingCluster()
    with pytest.raises(Unavailable):
        fail_a_pass(cluster, Unavailable("away"))
    assert cluster.statuses == []


def test_requests_that_get_no_answer_pass_after_pass_become_a_condition() -> None:
    """The API server answers 500 to a LIST of pods, say, and takes statuses."""
    cluster, memory = RecordingCluster(), Memory("uid")
    silence = Unavailable("GET pods: 500 injected", 500)
    for count in range(1, 2 * UNANSWERED_PASSES):
        if count == UNANSWERED_PASSES:
            fail_a_pass(cluster, None, memory)  # an answer in between: they are counted anew
        with pytest.raises(Unavailable):
            fail_a_pass(cluster, silence, memory)
        assert cluster.statuses == [] or count == 2 * UNANSWERED_PASSES - 1
    assert cluster.ready()["reason"] == "APIServerUnavailable"
    assert cluster.ready()["message"] == "GET pods: 500 injected; tried again."


def test_a_bug_that_cannot_be_reported_is_still_the_error_of_the_pass() -> None:
    with pytest.raises(KeyError):
        fail_a_pass(RecordingCluster(Unavailable("away")), KeyError("phase"))


@pytest.mark.parametrize(
    "error", [CreateRefused("exceeded quota"), WriteConflict("ledger.jsonl.gz")]
)
def test_a_store_that_takes_writes_again_is_no_trouble_beside_another_refusal(
    error: Exception,
) -> None:
    """Jobs come after what is written to the store, and a conflict is its answer."""
    memory = Memory("uid")
    carry_out(memory, 1, failing(StoreUnavailable("503")))
    assert not carry_out(memory, 1, failing(error))
    assert memory.store_write_error == ""
