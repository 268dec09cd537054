"""The part of a kubelet's log endpoint that `kubectl logs` uses."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

POLL_SECONDS = 0.2

# (namespace, pod, container) -> log file, and whether it may still grow.
FindLog = Callable[[str, str, str], tuple[Path, Callable[[], bool]] | None]


async def serve_logs(find: FindLog, certificate: Path, key: Path) -> tuple[web.AppRunner, int]:
    """Serve on a free port of 127.0.0.1; returns the runner, for its clean-up, and the port."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await _answer(request, find)

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    return runner, runner.addresses[0][1]


async def _answer(request: web.Request, find: FindLog) -> web.StreamResponse:
    where = request.match_info
    found = find(where["namespace"], where["pod"], where["container"])
    if found is None or request.query.get("previous") == "true":
        raise web.HTTPNotFound(text="no log of that container on this node")
    log, may_grow = found
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    position = _start_of_tail(log, request.query.get("tailLines"))
    while True:
        growing = may_grow()  # checked before the read, so that the last lines are not lost
        piece = _read(log, position)
        position += len(piece)
        await response.write(piece)
        if not piece and not (growing and request.query.get("follow") == "true"):
            break
        if not piece:
            await asyncio.sleep(POLL_SECONDS)
    return response


def _read(log: Path, position: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(position)
            return file.read(1 << 20)
    except FileNotFoundError:
        return b""


def _start_of_tail(log: Path, lines: str | None) -> int:
    if lines is None or not log.exists():
        return 0
    content = log.read_bytes()
    wanted = content.splitlines(keepends=True)[-int(lines) :] if int(lines) else []
    return len(content) - sum(map(len, wanted))
