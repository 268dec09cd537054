"""A proxy in front of an object store that loses answers, stays silent, or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from tests.support.proxy import Call, Forward, Loop, Proxy


class FaultyProxy(Proxy):
    """Stands before the server at `url` from the start. Its faults may be set at any time."""

    def __init__(self, url: str) -> None:
        super().__init__(Loop(), url)
        self.answers_to_lose = 0
        """That many requests arrive, but their connections end in place of the answers."""
        self.silent = False
        """Requests are taken and nothing is ever said."""
        self.silent_about = b""
        """A request with these bytes is never answered."""
        self.forbids: Callable[[bytes], bool] = lambda request: False
        """Whether a request is answered with status 403, without asking the server."""
        self.requests = 0
        """That came, those included that are not answered."""
        self.handler = self._fail
        self.start()

    def close(self) -> None:
        """Refuse connections from now on and end those that are open."""
        self.stop()
        self._loop.stop()

    async def _fail(self, call: Call, forward: Forward) -> web.StreamResponse:
        request = f"{call.method} {call.request.raw_path}\r\n".encode() + call.body
        self.requests += 1
        if self.silent or (self.silent_about and self.silent_about in request):
            await asyncio.Event().wait()
        if self.forbids(request):
            return web.Response(status=403)
        if self.answers_to_lose > 0:
            self.answers_to_lose -= 1
            async with self.ask(call) as (_, _, chunks):
                async for _ in chunks:
                    pass
            return call.reset()
        return await forward(call)
