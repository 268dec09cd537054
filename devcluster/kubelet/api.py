"""The few API calls of a node agent, over aiohttp: raw JSON, retried during outages."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import tenacity

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
NOT_FOUND, CONFLICT = 404, 409
# An API server that has just started has no roles in its caches and refuses every client (401, 403);
# 429 asks clients to slow down.
PASSING = (401, 403, 429)
CALL_SECONDS = 30
WATCH_SECONDS = 300


class ApiError(Exception):
    """The API server refused; `code` is its HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        """Keep the status with its message."""
        super().__init__(f"{code}: {message}")
        self.code = code


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, ApiError):
        return error.code in PASSING or error.code >= 500
    return isinstance(error, aiohttp.ClientError | OSError | asyncio.TimeoutError)


class Api:
    """A connection with the rights of one kubeconfig file (as devcluster.access writes it)."""

    def __init__(self, kubeconfig: Path) -> None:
        """Read the file; the connection opens in `async with`."""
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._server = cluster["server"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._token = config["users"][0]["user"]["token"]
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Api:
        """Open the connection."""
        self._session = aiohttp.ClientSession(
            self._server,
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=64),
            headers={"Authorization": f"Bearer {self._token}", "User-Agent": "process-node"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self._session.close()

    @tenacity.retry(
        retry=tenacity.retry_if_exception(_is_passing),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=2),
    )
    async def call(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> Json:
        """Make one call, retried while the server is down; raises only ApiError."""
        async with self._session.request(
            method,
            path,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
            timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
        ) as answer:
            text = await answer.text()
            if answer.status >= 400:
                raise ApiError(answer.status, text[:500])
            document: Json = json.loads(text)
            return document

    async def watch(self, path: str, version: str) -> AsyncIterator[Json]:
        """Yield the events of a list path (which may have a query) from a resource version on.

        Ends when the server ends it. Raises ApiError (410 for an expired version), aiohttp.ClientError or TimeoutError.
        """
        options = f"watch=1&allowWatchBookmarks=1&timeoutSeconds={WATCH_SECONDS}"
        joined = f"{path}{'&' if '?' in path else '?'}{options}&resourceVersion={version}"
        # Bookmarks come about once a minute, so a longer silence means a server that died without
        # closing the connection.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=90)
        async with self._session.get(joined, timeout=timeout) as answer:
            if answer.status >= 400:
                raise ApiError(answer.status, await answer.text())
            rest = b""
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield _event(line)


def _event(line: bytes) -> Json:
    event: Json = json.loads(line)
    if event["type"] == "ERROR":
        raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
    return event
