"""Stores that fall silent, refuse, or hold back single objects: a real S3 server behind a relay."""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import s3fs

from devcluster.object_storage import ObjectStorage
from isoloss_contract import layout
from isoloss_contract.reading import ABSENT, Newer, Unanswered, Unreadable
from isoloss_contract.records import PointResult
from isoloss_contract.store import Circuit, Patience, StoreUnavailable, time_limit
from isoloss_contract.store.circuit import NotAsked
from isoloss_contract.store.errors import Refused
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.store.storage import Storage
from tests.faults.injection import Chain, Fault, hang, of_key, store_status
from tests.support.proxy import Proxy, pass_on
from tests.support.results import LEAST_RESULT

BUCKET = "lab"
DENIED = store_status(403, "AccessDenied")
READERS = 4
SILENCE_SECONDS = 1.0
KEYS = [f"{number:032x}" for number in range(200)]
HELD_BACK = KEYS[3]
IMPATIENT = Patience(
    attempts=3,
    longest_pause_seconds=0.1,
    retry_timeouts=False,
    connect_seconds=SILENCE_SECONDS,
    silence_seconds=SILENCE_SECONDS,
    attempt_seconds=5.0,
)


def result(key: str) -> bytes:
    return json.dumps({**LEAST_RESULT, "key": key}).encode()


@pytest.fixture
def relay(object_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The way to an S3 server."""
    s3fs.S3FileSystem.clear_instance_cache()
    object_storage.create_bucket(BUCKET)
    relay = Proxy(object_storage.url).start()
    for name, value in object_storage.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", relay.url)
    yield relay
    relay.close()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def uri(object_storage: ObjectStorage) -> str:
    """A store with the result of each key."""
    name = secrets.token_hex(4)
    for key in KEYS:
        path = object_storage.buckets / BUCKET / name / layout.point_result(key)
        path.parent.mkdir(parents=True)
        path.write_bytes(result(key))
    return f"s3://{BUCKET}/{name}"


def new_storage() -> Storage:
    return Storage(readers=READERS, patience=IMPATIENT)


def until_answered(read: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while isinstance(read(), Unanswered):
        assert time.monotonic() < deadline, "it must recover by itself"
        time.sleep(0.1)


@pytest.mark.s3
def test_a_silent_store_costs_one_timeout_however_many_results_are_wanted(
    relay: Proxy, uri: str
) -> None:
    storage = new_storage()
    assert len(storage.results(uri, KEYS)) == len(KEYS)
    relay.handler = hang
    relay.cut()
    relay.requests = 0
    found = storage.results(uri, KEYS)
    assert len(found) == len(KEYS)
    assert all(isinstance(read, Unanswered) and not read.alone for read in found.values())
    # The readers that were under way; a library may try one more connection for a kept one that ended.
    assert relay.requests <= 2 * READERS
    before = relay.requests
    for _ in range(20):
        assert isinstance(storage.manifest(uri, "manifest.json"), Unanswered)
    assert relay.requests - before <= 2, "left alone for a moment"
    with pytest.raises(StoreUnavailable, match="so soon"):
        storage.quarantine(uri, Quarantine("a.json", "bad"))


@pytest.mark.s3
def test_what_a_tenant_does_wrong_in_its_own_store_costs_no_neighbour(
    relay: Proxy, uri: str
) -> None:
    """Three stores of one bucket: one denied, one whose keys are too long, one whose server is silent."""
    storage = new_storage()
    long, silent = f"{uri}-{'x' * 1000}", f"{uri}-silent"
    denied = Fault(lambda call: "-denied" in call.request.raw_path, DENIED)
    relay.handler = Chain([Fault(of_key("-silent/"), hang), denied])
    for _ in range(5):
        for bad in (long, silent, f"{uri}-denied"):
            assert isinstance(storage.manifest(bad, "data/x/manifest.json"), Unanswered)
        found = storage.results(uri, KEYS[:4])
        assert all(isinstance(read, PointResult) for read in found.values())


@pytest.mark.s3
def test_denied_objects_leave_the_rest_of_a_store_readable(relay: Proxy, uri: str) -> None:
    storage = new_storage()
    relay.handler = Fault(of_key("/result.json"), DENIED)
    for _ in range(3):
        found = storage.results(uri, KEYS[:5])
        assert all(isinstance(read, Unanswered) for read in found.values())
        assert storage.manifest(uri, "manifest.json") == ABSENT
    relay.handler = pass_on
    assert all(isinstance(r, PointResult) for r in storage.results(uri, KEYS[:5]).values())


@pytest.mark.s3
def test_a_store_that_denies_everything_holds_back_no_object_alone(relay: Proxy, uri: str) -> None:
    """Revoked credentials: nothing may be concluded about any point."""
    storage = new_storage()
    relay.handler = Fault(lambda _: True, DENIED)
    for _ in range(3):
        found = storage.results(uri, KEYS[:5])
        assert all(isinstance(read, Unanswered) and not read.alone for read in found.values())


@pytest.mark.s3
def test_one_result_that_never_comes_holds_up_no_other(relay: Proxy, uri: str) -> None:
    storage = new_storage()
    relay.handler = Fault(of_key(HELD_BACK), hang)
    found = storage.results(uri, KEYS)
    assert isinstance(found.pop(HELD_BACK), Unanswered)
    assert all(isinstance(read, PointResult) for read in found.values())
    storage.quarantine(uri, Quarantine("a.json", "bad"))  # what was read can be recorded


@pytest.mark.s3
def test_the_last_result_is_known_to_be_held_back_alone(relay: Proxy, uri: str) -> None:
    """From the second pass on: the first cannot tell it from a store that is down."""
    storage = new_storage()
    relay.handler = Fault(of_key(HELD_BACK), hang)
    assert storage.results(uri, [HELD_BACK])[HELD_BACK] != ABSENT
    until_answered(lambda: storage.manifest(uri, "manifest.json"))
    held_back = storage.results(uri, [HELD_BACK])[HELD_BACK]
    assert isinstance(held_back, Unanswered)
    assert held_back.alone
    assert storage.manifest(uri, "manifest.json") == ABSENT, "the store is not taken to be down"


def test_unusable_results_are_values_beside_the_others(tmp_path: Path) -> None:
    for key, content in ((KEYS[0], b"{"), (KEYS[1], b'{"contract_version": 2}'), (KEYS[2], b"")):
        path = tmp_path / layout.point_result(key)
        path.parent.mkdir(parents=True)
        path.write_bytes(content or result(key))
    found = Storage().results(f"file://{tmp_path}", KEYS[:4])
    assert [type(found.get(key)) for key in KEYS[:4]] == [
        Unreadable,
        Newer,
        PointResult,
        type(None),
    ]


def test_when_the_time_for_a_pass_is_over_the_store_is_not_asked(tmp_path: Path) -> None:
    storage, uri = Storage(), f"file://{tmp_path}"
    with time_limit(-1):
        assert isinstance(storage.manifest(uri, "manifest.json"), Unanswered)
        assert all(isinstance(r, Unanswered) for r in storage.results(uri, KEYS[:3]).values())
        with time_limit(60), pytest.raises(StoreUnavailable, match="time for reading"):
            storage.quarantine(uri, Quarantine("a.json", "bad"))
    assert storage.manifest(uri, "manifest.json") == ABSENT


def test_sweeps_of_one_store_share_its_listing(tmp_path: Path) -> None:
    calls: list[str] = []
    now = [0.0]
    storage = Storage(on_call=lambda name, *_: calls.append(name), clock=lambda: now[0])
    (tmp_path / "points/a").mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: storage.point_names(f"file://{tmp_path}", 60), range(50)))
    assert set(names) == {frozenset({"a"})}
    assert calls == ["list"]
    (tmp_path / "points/b").mkdir()
    now[0] = 61.0
    assert storage.point_names(f"file://{tmp_path}", 60) == {"a", "b"}
    assert calls == ["list", "list"]


class Silence(TimeoutError):
    pass


def fail(circuit: Circuit, error: Exception) -> None:
    with pytest.raises(type(error)), circuit.call():
        raise error


def test_after_a_timeout_a_circuit_lets_one_call_through_at_a_time() -> None:
    now = [0.0]
    circuit = Circuit(lambda: now[0])
    fail(circuit, Silence("silent"))
    fail_at_once = pytest.raises(NotAsked, match="silent")
    with fail_at_once, circuit.call():
        pass
    now[0] = 1.5
    with circuit.call(), pytest.raises(NotAsked), circuit.call():
        pass
    with circuit.call():
        pass  # answered: it is closed again


def test_a_circuit_waits_longer_from_failure_to_failure_but_never_long() -> None:
    now = [0.0]
    circuit = Circuit(lambda: now[0])
    fail(circuit, Silence("silent"))
    waits = []
    for _ in range(6):
        began = now[0]
        while True:
            now[0] += 0.25
            try:
                with circuit.call():
                    raise Silence("silent")
            except NotAsked:
                continue
            except Silence:
                break
        waits.append(now[0] - began)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_single_errors_between_answers_leave_a_circuit_closed() -> None:
    circuit = Circuit()
    for _ in range(20):
        fail(circuit, ConnectionError("refused"))
        fail(circuit, ConnectionError("refused"))
        with circuit.call():
            pass
    for _ in range(3):
        fail(circuit, ConnectionError("refused"))
    with pytest.raises(NotAsked, match="refused"), circuit.call():
        pass


def test_a_refusal_closes_a_circuit_and_shows_no_object_given_out() -> None:
    now = [0.0]
    circuit = Circuit(lambda: now[0])
    fail(circuit, Silence("silent"))
    now[0] = 1.5
    for _ in range(5):
        with pytest.raises(Refused), circuit.call(refusals=(Refused,)):
            raise Refused("denied")
    assert not circuit.has_answered_since(0.0)


def test_a_timeout_while_others_are_answered_is_that_objects_own() -> None:
    now = [0.0]
    circuit = Circuit(lambda: now[0])

    def call_that_outlasts_another() -> None:
        with circuit.call():
            now[0] = 1.0
            with circuit.call():
                pass
            now[0] = 10.0
            raise Silence("one object")

    with pytest.raises(Silence):
        call_that_outlasts_another()
    with circuit.call():
        pass
