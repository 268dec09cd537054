"""One request, sent once: through the official client's authentication, TLS and connection pool; and the times that it is held
against: the API server's own, and the end of the pass that it is made for."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import urllib3
from kubernetes.client import ApiClient, ApiException

CONNECT_SECONDS = 5.0
CHUNK = 2**16
TRANSPORT_ERRORS = (urllib3.exceptions.HTTPError, ApiException, OSError)
"""What `send` raises if there is no answer."""
BROKEN_CONNECTION = (urllib3.exceptions.ProtocolError, ConnectionError)
"""Those of a connection that broke after it had been made. A server closes what has been idle, and a client
finds out with the next request on it."""


@dataclass(frozen=True)
class Request:
    """A request to the API server."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Sequence[tuple[str, str]] = ()
    content_type: str = "application/json"
    accept: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Answer:
    """An answer, whatever its status."""

    status: int
    content: bytes
    retry_after: str | None
    """The header of that name."""
    date: str | None = None
    """The header of that name: the server's clock."""
    date_age: float = 0.0
    """Seconds since that header came: a body may take long."""

    @property
    def is_overloaded(self) -> bool:
        """Whether the server has refused to begin, and asks to come again."""
        return self.status == 429 or (self.status == 503 and self.retry_after is not None)


class Refusal(Exception):
    """The server ends a stream, or does not begin it, with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status


class Transport:
    """Sends requests. Thread-safe."""

    def __init__(self, client: ApiClient, *, user_agent: str) -> None:
        client.user_agent = user_agent
        # By default urllib3 sends a request up to four times, each with the whole timeout.
        client.rest_client.pool_manager.connection_pool_kw["retries"] = False
        self._client = client

    def send(self, request: Request, deadline: float) -> Answer:
        """The answer, whole before `deadline` (by time.monotonic). Raises TRANSPORT_ERRORS."""
        left = max(0.001, deadline - time.monotonic())
        response = self._begin(request, (min(CONNECT_SECONDS, left), left))
        came, headers = time.monotonic(), response.headers
        content = _content(response, deadline)
        retry_after, date = headers.get("Retry-After"), headers.get("Date")
        return Answer(response.status, content, retry_after, date, time.monotonic() - came)

    @contextlib.contextmanager
    def stream(self, request: Request, silent_seconds: float) -> Iterator[Iterator[bytes]]:
        """The lines of an answer as they come. Raises Refusal, and TRANSPORT_ERRORS, also after silence."""
        response = self._begin(request, (CONNECT_SECONDS, silent_seconds))
        try:
            if response.status >= 400:
                deadline = time.monotonic() + CONNECT_SECONDS
                content = _content(response, deadline)
                raise Refusal(response.status, content[:200].decode(errors="replace"))
            yield _lines(response)
        finally:
            response.close()

    def _begin(self, request: Request, timeout: tuple[float, float]) -> urllib3.BaseHTTPResponse:
        """The answer with its body still to be read. `timeout`: seconds to connect and of each read."""
        verb, url, headers, _, _ = self._client.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query),
            header_params={"Accept": request.accept, "Content-Type": request.content_type},
            auth_settings=["BearerToken"],
        )
        # The body is passed by here: param_serialize would copy all of it.
        raw = self._client.call_api(verb, url, headers, request.body, _request_timeout=timeout)
        response: urllib3.BaseHTTPResponse = raw.response
        return response


def _content(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """The whole body. The client's timeout is of each read; this one is of all of them together."""
    parts = []
    while part := response.read1(CHUNK):
        parts.append(part)
        if time.monotonic() > deadline:
            response.close()
            raise TimeoutError("the answer did not end in time")
    response.release_conn()
    return b"".join(parts)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    while part := response.read1(CHUNK):
        *lines, rest = (rest + part).split(b"\n")
        yield from filter(None, lines)


TOLERANCE: Final = timedelta(seconds=5)
"""An answer's Date has whole seconds and is as old as the answer took to begin: less is no difference."""


class ServerClock:
    """The API server's clock, as the Date of its answers tells it, since all times in objects are its own.

    An operator on a node whose clock is three hours off would take running pods for old or not begun, and a new leader would
    read its predecessor's times as the future. Thread-safe: the one value is replaced as a whole.
    """

    def __init__(self, here: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._here = here
        self._ahead = timedelta()

    def saw(self, date: str | None, age: float = 0.0) -> None:
        """An answer carries this Date, which came `age` seconds ago. One that cannot be read tells nothing."""
        if date is None:
            return
        try:
            server = parsedate_to_datetime(date)
        except ValueError:
            return
        if server.tzinfo is None:
            return
        ahead = server + timedelta(seconds=age) - self._here()
        self._ahead = ahead if abs(ahead) > TOLERANCE else timedelta()

    def now(self) -> datetime:
        """UTC, aware: this machine's clock if the two agree."""
        return self._here() + self._ahead


_deadline: ContextVar[float] = ContextVar("pass_deadline", default=math.inf)
"""Per context, not handed down: no call of a pass, through whatever layers, can forget it. Threads run in a copy of the context."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """The enclosed pass must be over in so many seconds, or earlier if an enclosing one says so."""
    token = _deadline.set(min(pass_deadline(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def pass_deadline() -> float:
    """Deadline on the time.monotonic clock; infinite outside of a pass."""
    return _deadline.get()
