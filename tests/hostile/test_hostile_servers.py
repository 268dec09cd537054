"""What an object store can answer against the operator that serves other namespaces, too.

Broken disks answer a byte a second, and gateways state lengths that are wrong. A hostile server stands before the
real one for the tenant's folders alone.
"""

from collections.abc import Iterator

import pytest

from devcluster.process_node import ProcessNode
from isoloss_contract import layout
from isoloss_operator.settings import Settings
from tests.hostile import hostile_server
from tests.hostile.hostile_server import LIST, Answer, HostileServer
from tests.hostile.neighbour import Neighbour, planned, prepared
from tests.hostile.test_hostile_stores import tenants_sweep
from tests.isoloss_operator.conftest import Place
from tests.support.cluster import wait_until
from tests.support.operator_process import OperatorProcess, User

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

MANIFEST, RESULT = "manifest.json", "result.json"
PAGE = b"<ListBucketResult><Contents><Key>"
ANSWERS: dict[str, tuple[str, Answer, str]] = {
    "a body without end": (MANIFEST, hostile_server.endless(), "larger than 16777216 bytes"),
    "an error without end": (
        MANIFEST,
        hostile_server.endless(status=500),
        "longer than 4194304 bytes",
    ),
    "a refusal without end": (
        MANIFEST,
        hostile_server.endless(status=403),
        "longer than 4194304 bytes",
    ),
    "a length of a terabyte": (
        MANIFEST,
        hostile_server.stated(10**12, b"{}"),
        "larger than 16777216 bytes",
    ),
    "a length that is too short": (
        MANIFEST,
        hostile_server.stated(2, b"{}" + b"[" * 9000),
        "Bad status line",
    ),
    "a length that is too long": (MANIFEST, hostile_server.stated(9000, b"{}"), "Not enough data"),
    "a length below zero": (MANIFEST, hostile_server.stated(-9000, b"{}"), "Content-Length"),
    "an error of a billion words": (
        MANIFEST,
        hostile_server.whole(hostile_server.entities(), 500),
        "An error occurred (500)",
    ),
    "a listing without end": (
        LIST,
        hostile_server.endless(start=PAGE, part=b"a" * 2**18),
        "longer than 4194304 bytes",
    ),
    "pages without end": (
        LIST,
        hostile_server.pages(hostile_server.new_tokens()),
        "more than 200000 names",
    ),
    "a page again and again": (
        LIST,
        hostile_server.pages(lambda: "same"),
        "its listing repeats a page",
    ),
    "a listing of a billion words": (
        LIST,
        hostile_server.whole(hostile_server.entities()),
        "An error occurred (500)",
    ),
}
"""What is answered in place of what, and what the user reads of it."""
MOST_AT_ONCE = Settings.model_fields["workers"].default - 1
"""Sweeps of one namespace in work at a time: each slow answer holds its worker until the read gives up, a minute."""
SLOW = {
    "a byte a second": (MANIFEST, hostile_server.drip()),
    "a byte a second of every result": (RESULT, hostile_server.drip()),
}


@pytest.fixture
def server(place: Place, limited: OperatorProcess) -> Iterator[HostileServer]:
    """Between the operator and the store; pods ask the store itself."""
    server = HostileServer(limited.environment["AWS_ENDPOINT_URL"])
    limited.environment["AWS_ENDPOINT_URL"] = server.url
    yield server
    server.close()


def attack(
    server: HostileServer, tenant: User, place: Place, name: str, what: str, answer: Answer
) -> None:
    """A sweep whose corpus is prepared and whose results exist, as far as its store says so."""
    body = tenants_sweep(place, name)
    body["spec"]["suspend"] = True
    uid = tenant.apply_sweep(body)["metadata"]["uid"]
    store = prepared(place, name, body["spec"], uid)
    for point in planned(body["spec"]):
        store.write(layout.point_result(point.key), b"{}")
    server.answers[name, what] = answer
    del body["spec"]["suspend"]
    tenant.apply_sweep(body)


@pytest.mark.whole
def test_no_answer_of_a_store_takes_the_operator_from_its_neighbours(
    server: HostileServer,
    limited: OperatorProcess,
    user: User,
    tenant: User,
    node: ProcessNode,
    place: Place,
) -> None:
    names = {f"answer-{number}": what for number, what in enumerate(ANSWERS)}
    with Neighbour(user, limited, place) as neighbour:
        for name, what in names.items():
            part, answer, _ = ANSWERS[what]
            attack(server, tenant, place, name, part, answer)
        for name, what in names.items():
            words = ANSWERS[what][2]
            wait_until(lambda name=name, words=words: is_reported(tenant, name, words), what)
        neighbour.judge()


def is_reported(tenant: User, name: str, words: str) -> bool:
    """Whether the user reads them: in Ready, or in an event once Ready speaks of what came next."""
    return words in ready(tenant, name) or any(words in each for each in tenant.told(name))


def ready(tenant: User, name: str) -> str:
    """The message of Ready once the operator has met the answer."""
    body = tenant.wait_for(lambda: tenant.sweep(name), "Ready", "False", seconds=120)
    found = next(c for c in body["status"]["conditions"] if c["type"] == "Ready")
    assert found["reason"] != "InternalError", found
    return f"{found['reason']}: {found['message']}"


@pytest.mark.whole
def test_slow_answers_of_a_store_delay_no_neighbour(
    server: HostileServer,
    limited: OperatorProcess,
    user: User,
    tenant: User,
    node: ProcessNode,
    place: Place,
) -> None:
    with Neighbour(user, limited, place) as neighbour:
        for number, (part, answer) in enumerate([*SLOW.values()] * 4):
            attack(server, tenant, place, f"slow-{number}", part, answer)
        wait_until(lambda: len(server.asked) >= MOST_AT_ONCE, "slow answers to be under way")
        neighbour.asks_again()
        neighbour.judge()
    # A pass takes a minute or two. Of one tenant's questions the newest come first, and the oldest every other time:
    # which is answered first depends on when each arrived.
    names = [f"slow-{number}" for number in range(len(SLOW) * 4)]
    wait_until(
        lambda: any("StorageUnreachable" in str(tenant.sweep(name)["status"]) for name in names),
        "a sweep to be told of its slow store",
        240,
    )
