"""What a call does when the server does not answer, answers slowly or nonsense: one request, one deadline."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from kubernetes import client

from isoloss_operator.cluster.client import JOB, SWEEP, Cluster, Unavailable
from isoloss_operator.cluster.transport import pass_deadline, within

Serve = Callable[[socket.socket], None]


class Server:
    """A TCP server that counts requests and answers each connection's first one with `serve`."""

    def __init__(self, serve: Serve) -> None:
        self.requests = 0
        self._serve = serve
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def cluster(self, call_seconds: float) -> Cluster:
        """Its client, as the operator makes one."""
        host = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        configuration = client.Configuration(host=host)
        return Cluster(client.ApiClient(configuration), call_seconds=call_seconds)

    def close(self) -> None:
        self._stopped.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as stream:
            while line := stream.readline():
                length = 0
                while line.strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                    line = stream.readline()
                stream.read(length)
                self.requests += 1
                self._serve(connection)


Start = Callable[[Serve], Server]


@pytest.fixture
def serve() -> Iterator[Start]:
    servers: list[Server] = []

    def start(answer: Serve) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def respond(status: str, body: bytes, *headers: str) -> Serve:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
    return lambda connection: connection.sendall(f"{head}\r\n\r\n".encode() + body)


def trickle(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(1000):
        connection.sendall(b" ")
        time.sleep(0.05)


def test_while_a_body_comes_slowly_the_servers_clock_goes_on(serve: Start) -> None:
    def slowly(connection: socket.socket) -> None:
        date = "Date: Wed, 01 Jan 2020 00:00:00 GMT"
        connection.sendall(f"HTTP/1.1 200 OK\r\n{date}\r\nContent-Length: 2\r\n\r\n".encode())
        time.sleep(1)
        connection.sendall(b"{}")

    cluster = serve(slowly).cluster(10)
    cluster.get(SWEEP, "x", "y")
    assert cluster.clock.now() > datetime(2020, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("answer", "says"),
    [(lambda _connection: time.sleep(30), "timed out"), (trickle, "did not end in time")],
    ids=["silence", "an answer that trickles"],
)
def test_a_call_without_a_whole_answer_is_sent_once_and_ends_in_time(
    serve: Start, answer: Serve, says: str
) -> None:
    server = serve(answer)
    started = time.monotonic()
    with pytest.raises(Unavailable, match=says):
        server.cluster(0.3).get(SWEEP, "x", "y")
    assert server.requests == 1
    assert time.monotonic() - started < 3


def hang_up(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def test_of_what_the_server_hangs_up_on_only_a_read_is_sent_twice(serve: Start) -> None:
    """A write may have been carried out."""
    server = serve(hang_up)
    with pytest.raises(Unavailable):
        server.cluster(5).get(SWEEP, "x", "y")
    assert server.requests == 2
    with pytest.raises(Unavailable):
        server.cluster(5).create(JOB, "x", {})
    assert server.requests == 3


def test_a_connection_that_was_closed_while_idle_costs_no_read(serve: Start) -> None:
    answer = respond("200 OK", b'{"kind": "ScalingSweep"}')
    turns = iter([answer, hang_up, answer])
    cluster = serve(lambda connection: next(turns)(connection)).cluster(5)
    for _ in range(2):
        assert cluster.get(SWEEP, "x", "y") == {"kind": "ScalingSweep"}


@pytest.mark.parametrize(
    "answer",
    [
        respond("200 OK", b"<html>a proxy's page</html>"),
        lambda c: (c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"), c.close()),
        lambda c: (c.sendall(b"nonsense"), c.close()),
    ],
    ids=["not JSON", "truncated", "not HTTP"],
)
def test_an_answer_that_is_none_is_unavailable(serve: Start, answer: Serve) -> None:
    with pytest.raises(Unavailable):
        serve(answer).cluster(5).get(SWEEP, "x", "y")


def test_a_connection_is_used_again(serve: Start) -> None:
    accepted: set[socket.socket] = set()
    answer = respond("200 OK", b'{"kind": "ScalingSweep"}')

    def note(connection: socket.socket) -> None:
        accepted.add(connection)
        answer(connection)

    cluster = serve(note).cluster(5)
    for _ in range(3):
        assert cluster.get(SWEEP, "x", "y") == {"kind": "ScalingSweep"}
    assert len(accepted) == 1


def busy_then(answer: Serve, *refusals: Serve) -> Serve:
    """Refuses so many times, then answers."""
    queue = [*refusals]
    return lambda connection: (queue.pop(0) if queue else answer)(connection)


OK = respond("200 OK", b'{"kind": "Job"}')
BUSY = respond("429 Too Many Requests", b'{"message": "too many"}', "Retry-After: 1")


@pytest.mark.parametrize(
    "refusal",
    [BUSY, respond("503 Service Unavailable", b"{}", "Retry-After: 1")],
    ids=["429", "503"],
)
def test_an_overloaded_server_is_asked_again_once_it_wants_to_be(
    serve: Start, refusal: Serve
) -> None:
    """Also to create: a request that is refused for overload was not begun."""
    server = serve(busy_then(OK, refusal))
    started = time.monotonic()
    assert server.cluster(10).create(JOB, "x", {}) == {"kind": "Job"}
    assert 1 <= time.monotonic() - started < 5
    assert server.requests == 2


def test_a_server_that_stays_overloaded_is_unavailable_in_time(serve: Start) -> None:
    server = serve(BUSY)
    started = time.monotonic()
    with pytest.raises(Unavailable):
        server.cluster(1.5).get(SWEEP, "x", "y")
    assert time.monotonic() - started < 2
    assert server.requests <= 2


def test_no_call_outlasts_its_pass(serve: Start) -> None:
    cluster = serve(lambda _connection: time.sleep(30)).cluster(20)
    started = time.monotonic()
    with within(0.3), pytest.raises(Unavailable):
        cluster.get(SWEEP, "x", "y")
    with within(0), pytest.raises(Unavailable, match="no time is left"):
        cluster.get(SWEEP, "x", "y")
    assert time.monotonic() - started < 3


def test_an_inner_deadline_does_not_lengthen_the_outer_one() -> None:
    with within(5):
        wanted = pass_deadline()
        with within(50):
            assert pass_deadline() == wanted
    assert pass_deadline() == float("inf")
