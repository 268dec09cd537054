"""An HTTP proxy between a client and one server, where calls can be counted and made to fail (tests/faults/injection.py).

It runs in a thread of its own, speaks plain HTTP to the client, and passes answers on as they
come, so that watches stay streams. Requests reach the server as they were sent: S3 signatures,
which cover the Host header, stay valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web
from yarl import URL

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "te", "upgrade"}
CONNECT_SECONDS = 5
WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class Call:
    """One request of the client."""

    method: str
    path: str
    """Without the query, as sent."""
    query: dict[str, str]
    body: bytes
    request: web.BaseRequest

    @property
    def is_write(self) -> bool:
        """Whether it changes what the server holds."""
        return self.method in WRITES

    @property
    def is_watch(self) -> bool:
        """Whether it is a Kubernetes watch."""
        return self.query.get("watch", "") in ("true", "1")

    def reset(self) -> web.StreamResponse:
        """End the connection without an answer."""
        if self.request.transport is not None:
            self.request.transport.abort()
        return web.Response(status=500)  # reaches nobody


Forward = Callable[[Call], Awaitable[web.StreamResponse]]
"""Sends a call on and passes the answer back while it comes."""
Handler = Callable[[Call, Forward], Awaitable[web.StreamResponse]]
"""What happens to a call: it may be forwarded, answered otherwise, held or cut off."""


async def pass_on(call: Call, forward: Forward) -> web.StreamResponse:
    """No fault."""
    return await forward(call)


class Loop:
    """A thread with an event loop, for all proxies of a run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # Connections are cut here on purpose, and clients leave theirs: neither is worth a line.
        self.loop.set_exception_handler(lambda _loop, _context: None)
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[object]) -> object:
        """Run a coroutine to its end, from any other thread."""

        async def wrapped() -> object:
            return await work

        return asyncio.run_coroutine_threadsafe(wrapped(), self.loop).result(60)

    def stop(self) -> None:
        """End the thread."""

        async def end_all() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(end_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


class Proxy:
    """Stands before one server; `handler` decides about every call."""

    def __init__(
        self, server: str, authority: Path | None = None, loop: Loop | None = None
    ) -> None:
        """`server` is its address; `authority` the CA file of an https server. Without a `loop` it has one of its own."""
        self._own_loop = loop is None
        self._loop = loop or Loop()
        self._server = server.rstrip("/")
        self._ssl = ssl.create_default_context(cafile=str(authority)) if authority else None
        self._session: ClientSession | None = None
        self._runner: web.ServerRunner | None = None
        self._port = 0
        self.handler: Handler = pass_on
        self.requests = 0
        """That came, those included that are not answered."""

    @property
    def url(self) -> str:
        """Where the client finds it."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Proxy:
        """Listen; at the same port again after `stop`."""
        self._loop.run(self._start())
        return self

    def stop(self) -> None:
        """Refuse connections and cut those that are open: the server is away."""
        self._loop.run(self._stop())

    def close(self) -> None:
        """Stop, for good."""
        self.stop()
        if self._own_loop:
            self._loop.stop()

    def cut(self) -> None:
        """End all open connections: clients keep idle ones for the next request."""
        self._loop.loop.call_soon_threadsafe(self._abort)

    async def _start(self) -> None:
        timeout = ClientTimeout(total=None, connect=CONNECT_SECONDS)
        connector = TCPConnector(ssl=self._ssl or True, limit=0)
        self._session = ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, skip_auto_headers=_AUTO
        )
        server = web.Server(self._answer)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = int(site.name.rpartition(":")[2])

    async def _stop(self) -> None:
        if self._runner is None or self._session is None:
            return
        self._abort()
        await self._runner.cleanup()
        await self._session.close()
        self._runner = self._session = None
        await asyncio.sleep(0)

    def _abort(self) -> None:
        server = self._runner.server if self._runner else None
        for connection in list(server.connections if server else ()):
            if connection.transport is not None:
                connection.transport.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            body = await self._read(request)
        except OSError:
            return web.Response(status=500)  # its sender is gone
        parts = urlsplit(request.raw_path)
        call = Call(request.method, parts.path, dict(request.query), body, request)
        self.requests += 1
        try:
            return await self.handler(call, self._forward)
        except (TimeoutError, ClientError, OSError):
            return call.reset()

    async def _read(self, request: web.BaseRequest) -> bytes:
        """The body; S3 clients wait to be asked for it."""
        if "Expect" in request.headers and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await request.read()

    async def _forward(self, call: Call) -> web.StreamResponse:
        async with self.ask(call) as (status, headers, chunks):
            response = web.StreamResponse(status=status, headers=headers)
            await response.prepare(call.request)
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
            return response

    @contextlib.asynccontextmanager
    async def ask(
        self, call: Call, body: bytes | None = None
    ) -> AsyncIterator[tuple[int, dict[str, str], AsyncIterator[bytes]]]:
        """The server's own answer: status, headers and the body in pieces."""
        assert self._session is not None
        content = call.body if body is None else body
        headers = {n: v for n, v in call.request.headers.items() if n.lower() not in HOP_BY_HOP}
        url = URL(self._server + call.request.raw_path, encoded=True)
        async with self._session.request(
            call.method, url, data=content or None, headers=headers, allow_redirects=False
        ) as answer:
            kept = {n: v for n, v in answer.headers.items() if n.lower() not in HOP_BY_HOP}
            yield answer.status, kept, answer.content.iter_any()


_AUTO = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


def wait_for(holds: Callable[[], object], seconds: float) -> bool:
    """Whether `holds()` became true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
