"""Counts the writes of each sweep, API server and store together, and stops them after the n-th, or after
the next of a kind.

What a killed operator would not have written is held: the call never reaches the server. So several
sweeps of one operator can each be stopped after a write of their own before one SIGKILL ends it.
"""

import asyncio
import re
import threading
from collections import defaultdict
from collections.abc import Mapping
from urllib.parse import unquote

from aiohttp import web

from tests.faults.injection import Matches, is_lease
from tests.support.proxy import Call, Forward

NAMESPACE = re.compile(r"/namespaces/([^/]+)/")
BUCKET = re.compile(r"^/[^/]+/([^/]+)/")
DELETED_KEY = re.compile(rb"<Key>([^/<]+)/")
"""Of a bulk deletion, whose keys are in its body."""


class Writes:
    """Handler of both proxies of an operator; a sweep is named by its namespace, which is also its
    folder in the bucket."""

    def __init__(self) -> None:
        self.made: defaultdict[str, list[str]] = defaultdict(list)
        """What each sweep's operator wrote, in the order of arrival."""
        self._lock = threading.Lock()
        self._limits: dict[str, int] = {}
        self._marks: dict[str, Matches] = {}
        self._ended: defaultdict[str, int] = defaultdict(int)
        self._release: list[asyncio.Event] = [asyncio.Event()]

    def stop_after(self, limits: Mapping[str, int]) -> None:
        """Let each sweep make so many writes from its start, and hold what follows."""
        self._limits = dict(limits)

    def stop_at(self, name: str, matches: Matches) -> None:
        """Let a sweep write until it has made the next write that matches, and hold what follows."""
        self._marks[name] = matches

    def have_stopped(self) -> set[str]:
        """The sweeps whose last allowed write is done."""
        return {name for name, limit in self._limits.items() if self._ended[name] >= limit}

    def forget_from(self, name: str) -> None:
        """Count on from what was really written: held calls were numbered, but never made."""
        del self.made[name][self._ended[name] :]

    def drop_held(self) -> None:
        """Forget the held calls: their sender has been killed. No limit holds from now on."""
        self._limits, self._marks = {}, {}
        release, self._release[0] = self._release[0], asyncio.Event()
        release.set()

    async def __call__(self, call: Call, forward: Forward) -> web.StreamResponse:
        name = scope(call)
        if not call.is_write or name is None:
            return await forward(call)
        with self._lock:
            self.made[name].append(f"{call.method} {_short(call)}")
            number = len(self.made[name])
            mark = self._marks.get(name)
            if mark is not None and name not in self._limits and mark(call):
                self._limits[name] = number
            limit = self._limits.get(name)
        if limit is not None and number > limit:
            await self._release[0].wait()
            return call.reset()
        try:
            return await forward(call)
        finally:
            self._ended[name] += 1


def scope(call: Call) -> str | None:
    """The sweep that a call belongs to; None for the leader's lease and what is not about one."""
    if is_lease(call):
        return None
    found = NAMESPACE.search(call.path) or BUCKET.search(unquote(call.path))
    if found:
        return found.group(1)
    deleted = DELETED_KEY.search(call.body) if "delete" in call.query else None
    return deleted.group(1).decode() if deleted else None


def _short(call: Call) -> str:
    path = unquote(call.path)
    found = NAMESPACE.search(path)
    if found:
        return re.sub(r"-[0-9a-f]{8,}.*", "", path[found.end() :])
    match = BUCKET.search(path)
    return path[match.end() :] if match else path
