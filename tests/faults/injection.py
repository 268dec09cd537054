"""What can go wrong with a call, and with which calls: the faults that the rows put into a proxy."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from tests.support.proxy import Call, Forward, Handler, Proxy, pass_on

Matches = Callable[[Call], bool]
Act = Callable[[Call, Forward], Awaitable[web.StreamResponse]]


@dataclass
class Fault:
    """Hits every `every`-th call that matches, at most `times` times, while `active`."""

    matches: Matches
    act: Act
    every: int = 1
    times: int | None = None
    active: bool = True
    hits: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def __call__(self, call: Call, forward: Forward) -> web.StreamResponse:
        if not self.active or not self.matches(call) or next(self._numbers) % self.every:
            return await forward(call)
        if self.times is not None and self.hits >= self.times:
            return await forward(call)
        self.hits += 1
        return await self.act(call, forward)


class Chain:
    """Handlers one after another: the first fault that speaks wins."""

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self.handlers: list[Handler] = list(handlers)

    async def __call__(self, call: Call, forward: Forward) -> Any:
        return await self._at(0, call, forward)

    async def _at(self, index: int, call: Call, forward: Forward) -> Any:
        if index == len(self.handlers):
            return await pass_on(call, forward)

        async def onward(inner: Call) -> Any:
            return await self._at(index + 1, inner, forward)

        return await self.handlers[index](call, onward)


@dataclass
class From:
    """Every call from the n-th that matches on."""

    matches: Matches
    number: int = 1
    seen: int = 0

    def __call__(self, call: Call) -> bool:
        self.seen += self.matches(call)
        return self.seen >= self.number


# ------------------------------------------------------------------------------ which calls


def verb(call: Call) -> str:
    """The Kubernetes verb of a call to the API server."""
    if call.method == "GET":
        if call.is_watch:
            return "watch"
        return "get" if _is_named(call.path) else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[call.method]


def _is_named(path: str) -> bool:
    """Whether the path ends in an object: .../namespaces/NS/PLURAL/NAME[/status]."""
    _, _, rest = path.partition("/namespaces/")
    return len(rest.strip("/").split("/")) > 2


def is_lease(call: Call) -> bool:
    """The leader's own calls: they belong to no sweep."""
    return "/leases" in call.path


def of_verb(wanted: str) -> Matches:
    """Calls about resources of a namespace, except leases."""
    return lambda call: "/namespaces/" in call.path and not is_lease(call) and verb(call) == wanted


def of_key(part: str, *methods: str) -> Matches:
    """Calls to the store about objects whose key contains `part`; of these methods, else of all."""
    return lambda call: part in unquote(call.path) and (not methods or call.method in methods)


# ------------------------------------------------------------------------------ what happens


def status(code: int, message: str = "injected", **headers: str) -> Act:
    """The API server's own form of a refusal."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "code": code,
    }

    async def act(_call: Call, _forward: Forward) -> web.StreamResponse:
        return web.json_response(body, status=code, headers=headers)

    return act


def store_status(code: int, name: str) -> Act:
    """The form that an S3 server gives an error."""
    text = f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>injected</Message></Error>"

    async def act(_call: Call, _forward: Forward) -> web.StreamResponse:
        return web.Response(status=code, text=text, content_type="application/xml")

    return act


async def reset(call: Call, _forward: Forward) -> web.StreamResponse:
    """The connection ends before anything was done."""
    return call.reset()


async def hang(call: Call, _forward: Forward) -> web.StreamResponse:
    """No answer, ever: the client's own timeout must end it."""
    await asyncio.sleep(3600)
    return call.reset()


def unanswered(proxy: Proxy) -> Act:
    """The call is carried out, and then the connection ends without its answer."""

    async def act(call: Call, _forward: Forward) -> web.StreamResponse:
        async with proxy.ask(call) as (_, _, chunks):
            async for _ in chunks:
                pass
        return call.reset()

    return act


def slow(seconds: float) -> Act:
    """The answer comes late."""

    async def act(call: Call, forward: Forward) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await forward(call)

    return act


def truncated(proxy: Proxy) -> Act:
    """The answer breaks off in the middle of its body."""

    async def act(call: Call, _forward: Forward) -> web.StreamResponse:
        async with proxy.ask(call) as (code, headers, chunks):
            content = b"".join([chunk async for chunk in chunks])
            response = web.StreamResponse(status=code, headers=headers)
            response.content_length = len(content) or None
            await response.prepare(call.request)
            await response.write(content[: len(content) // 2])
            return call.reset()

    return act


def half_written(bucket: Path) -> Act:
    """Half of an object reaches the disk, as on a store without atomic writes; then no answer."""

    async def act(call: Call, _forward: Forward) -> web.StreamResponse:
        target = bucket.parent / unquote(call.path).lstrip("/")
        replace_object(target, call.body[: len(call.body) // 2])
        return call.reset()

    return act


def replace_object(path: Path, content: bytes) -> None:
    """Write an object's file anew: the S3 server keeps its checksum with the file it replaces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content)


async def silent_watch(call: Call, _forward: Forward) -> web.StreamResponse:
    """A watch that opens and then never says anything."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(call.request)
    await asyncio.sleep(3600)
    return response


async def expired_watch(call: Call, _forward: Forward) -> web.StreamResponse:
    """A watch that ends with the event 410 Gone."""
    gone = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410}
    event = {"type": "ERROR", "object": {**gone, "reason": "Expired", "message": "too old"}}
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(call.request)
    await response.write(json.dumps(event).encode() + b"\n")
    await response.write_eof()
    return response
