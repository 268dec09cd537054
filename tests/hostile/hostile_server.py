"""Answers of an S3 server that mean to take whoever asks with them; a real server answers everybody else."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

from aiohttp import web

from tests.support.proxy import Call, Forward, Proxy

Answer = Callable[[Call], Awaitable[web.StreamResponse]]
PART = b" " * 2**18
NAMES = "".join(f"<Contents><Key>KEY{number}</Key></Contents>" for number in range(1000))


class HostileServer(Proxy):
    """Before a real server: `answers` are given in place of it by what a request's path and query hold."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.answers: dict[tuple[str, str], Answer] = {}
        """By the sweep's folder in the bucket, and a part of the object's path or LIST for the listing of its points."""
        self.asked: dict[str, int] = {}
        """How often each sweep's hostile answer was begun."""
        self.handler = self._hostile
        self.start()

    async def _hostile(self, call: Call, forward: Forward) -> web.StreamResponse:
        is_listing = call.query.get("list-type") == "2"
        what = call.query.get("prefix", "") if is_listing else call.path
        for (folder, part), answer in self.answers.items():
            is_meant = is_listing if part == LIST else not is_listing and part in call.path
            if call.method == "GET" and f"{folder}/" in what and is_meant:
                self.asked[folder] = self.asked.get(folder, 0) + 1
                return await answer(call)
        return await forward(call)


LIST = "the listing"


async def _begun(
    call: Call, status: int = 200, length: int | None = None, **headers: str
) -> web.StreamResponse:
    answer = web.StreamResponse(status=status, headers={"ETag": '"x"', **headers})
    answer.content_length = length
    if length is None:
        answer.enable_chunked_encoding()
    await answer.prepare(call.request)
    return answer


def endless(status: int = 200, start: bytes = b"", part: bytes = PART) -> Answer:
    """A body that never ends, as fast as it is read."""

    async def answer(call: Call) -> web.StreamResponse:
        begun = await _begun(call, status, **{"Content-Type": "application/xml"})
        await begun.write(start)
        while True:
            await begun.write(part)

    return answer


def drip(length: int = 10_000) -> Answer:
    """One byte a second: no silence ends it."""

    async def answer(call: Call) -> web.StreamResponse:
        begun = await _begun(call, length=length)
        for _ in range(length):
            await begun.write(b" ")
            await asyncio.sleep(1)
        return begun

    return answer


def stated(length: int, body: bytes) -> Answer:
    """Content-Length says one thing, the body another."""

    async def answer(call: Call) -> web.StreamResponse:
        head = f"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: {length}\r\n\r\n"
        assert call.request.transport is not None
        call.request.transport.write(head.encode() + body)
        await asyncio.sleep(0.5)
        return call.reset()

    return answer


def whole(body: bytes, status: int = 200, **headers: str) -> Answer:
    """An ordinary answer."""

    async def answer(call: Call) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return answer


def pages(token: Callable[[], str]) -> Answer:
    """A thousand names, and more to come."""

    async def answer(call: Call) -> web.StreamResponse:
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token()}</NextContinuationToken>"
        names = NAMES.replace("KEY", f"{call.query['prefix']}{token()}-")
        text = f"<ListBucketResult>{more}{names}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")

    return answer


def new_tokens() -> Callable[[], str]:
    """Another one each time."""
    numbers = count()
    return lambda: f"token{next(numbers)}"


def entities() -> bytes:
    """A billion of a word, once whoever parses it has put them in."""
    levels = "".join(
        f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "isoloss"}">' for n in range(10)
    )
    return f"<?xml version='1.0'?><!DOCTYPE x [{levels}]><x><Code>&e9;</Code></x>".encode()
