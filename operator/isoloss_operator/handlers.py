"""What the watches deliver. Every handler adds a key to the queue and drops what it saw.

kopf watches sweeps and predictions, cluster/job_watch.py their Jobs. Pods are not watched: what a pod does
shows in its Job's status at once or is no hurry, and their events would be half of all that there are.

Event handlers only: kopf's other handlers write annotations or finalizers, retry by themselves, or behave
differently on create, update, restart and resync (README.md, "Why so little of kopf").
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import kopf

from isoloss_operator import api
from isoloss_operator.cluster.client import JOB, PREDICTION, SWEEP, Kind, ResourceKey, owner_key
from isoloss_operator.cluster.job_watch import SERVER_SECONDS, OnAnswer
from isoloss_operator.cluster.json_depth import truncated
from isoloss_operator.cluster.manifests import OWNER_ANNOTATION
from isoloss_operator.process.metrics import Metrics
from isoloss_operator.process.watchdog import WatchDog
from isoloss_operator.process.workqueue import WorkQueue

Object = Mapping[str, Any]

WATCH_TASK = "watcher for "
"""How kopf's names of the tasks that watch begin."""
WATCH_END_SECONDS = 5.0
WATCHED_PATH = re.compile(rf"/apis/{api.GROUP}/{api.VERSION}(?:/namespaces/([^/]+))?/([^/]+)$")
"""Of a list or watch, with its namespace and kind."""


@dataclass(frozen=True)
class _Delivered:
    """What a resource's event is compared by: a status that we wrote ourselves is no reason for a pass."""

    asked: tuple[Any, ...]
    """All that others write: for the resource's own pass."""
    found: tuple[Any, ...]
    """What a sweep has come to, its progress left out: for the passes of its predictions."""

    @classmethod
    def of(cls, body: Object) -> _Delivered:
        metadata, status = body["metadata"], body.get("status") or {}
        own = (
            metadata["uid"],
            metadata.get("generation"),
            metadata.get("deletionTimestamp"),
        )
        marks = (dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {}))
        conditions = tuple(
            (each.get("type"), each.get("status"), each.get("reason"))
            for each in status.get("conditions") or ()
        )
        laws = (status.get("observedGeneration"), status.get("lawsSha256"))
        return cls((*own, marks), (*own, conditions, laws))


class EventRouter:
    """Turns watch events into keys."""

    def __init__(
        self, queue: WorkQueue[ResourceKey], watchdog: WatchDog, metrics: Metrics
    ) -> None:
        self._queue = queue
        self._watchdog = watchdog
        self._metrics = metrics
        self._named_by: dict[ResourceKey, frozenset[ResourceKey]] = {}
        """What a sweep or prediction names in its spec; it is queued when one of them changes. Only a hint: they also
        requeue themselves."""
        self._delivered: dict[ResourceKey, _Delivered] = {}

    def resource(self, kind: Kind, event: Object, body: Object) -> None:
        """A sweep or prediction was listed, added, changed or deleted."""
        self._saw(kind, event, body)
        metadata = body["metadata"]
        key = ResourceKey(kind, metadata["namespace"], metadata["name"])
        gone = event.get("type") == "DELETED"
        before, now = self._delivered.pop(key, None), _Delivered.of(body)
        if before is None:
            self._metrics.saw_namespace(key.namespace)
        if not gone:
            self._delivered[key] = now
        if gone or before is None or before.asked != now.asked:
            self._queue.add(key, first=True)  # somebody asks, or waits for it to go
        self._named_by.pop(key, None)
        if not gone and (named := _named(key, body.get("spec") or {})):
            self._named_by[key] = named
        if gone or before is None or before.found != now.found:
            for other, names in self._named_by.items():
                if key in names:
                    self._queue.add(other)

    def job(self, event: Object, body: Object) -> None:
        """A Job of ours, of which the metadata is enough, was listed, added, changed or deleted: queue its owner.

        Called in another thread than `resource`.
        """
        self._saw(JOB, event, body)
        metadata = body["metadata"]
        owner = (metadata.get("annotations") or {}).get(OWNER_ANNOTATION, "")
        key = owner_key(metadata["namespace"], owner)
        if key is not None:
            self._queue.add(key)

    def _saw(self, kind: Kind, event: Object, body: Object) -> None:
        metadata = body["metadata"]
        self._metrics.watch_event.labels(kind.kind).set(time.time())
        gone = event.get("type") == "DELETED"
        self._watchdog.delivered(metadata["uid"], metadata["resourceVersion"], gone=gone)


def _named(key: ResourceKey, spec: Object) -> frozenset[ResourceKey]:
    """The sweeps that a prediction names, or the predictions that a sweep does; of any spec that the API server took."""
    if key.kind == PREDICTION:
        references = (spec.get("sweepRef"), (spec.get("validation") or {}).get("sweepRef"))
        names, kind = [(each or {}).get("name") for each in references], SWEEP
    else:
        grids = [proxy.get("grid") or {} for proxy in spec.get("proxies") or ()]
        names = [(grid.get("around") or {}).get("prediction") for grid in grids]
        kind = PREDICTION
    return frozenset(
        ResourceKey(kind, key.namespace, name) for name in names if isinstance(name, str)
    )


def build_registry(router: EventRouter, on_answer: OnAnswer) -> kopf.OperatorRegistry:
    """The handlers, in a registry of their own: two operators can run in one process."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> Any:
        return _session(kopf.login_via_client(**kwargs), on_answer)

    kopf.on.cleanup(registry=registry)(_end_watches)
    for kind in (SWEEP, PREDICTION):
        _watch(registry, kind, router.resource)
    return registry


async def _end_watches(**_: Any) -> None:
    """End the watches that kopf leaves running where another one failed.

    It cancels them five seconds later, at once with the tasks that tell them of a pause. A watch whose turn comes
    after that takes the cancellation for a pause and never ends: the process would be killed a minute later, with
    its lease.
    """
    watches = [task for task in asyncio.all_tasks() if task.get_name().startswith(WATCH_TASK)]
    for watch in watches:
        watch.cancel()
    if watches:
        await asyncio.wait(watches, timeout=WATCH_END_SECONDS)


def _session(found: kopf.ConnectionInfo | None, on_answer: OnAnswer) -> kopf.AiohttpSession | None:
    """kopf's own session, but for objects that no parser takes: one of them would end all watches."""
    if found is None:
        return None

    async def tell(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response = await handler(request)
        if watched := WATCHED_PATH.search(request.url.path):
            on_answer(watched[1] or "", watched[2], response.status)
        return response

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
        headers=found.as_http_headers(),
        proxy=found.proxy_url,
        trust_env=found.trust_env,
        middlewares=(_cut_down, tell),
    )
    return kopf.AiohttpSession(
        server=found.server,
        default_namespace=found.default_namespace,
        priority=found.priority,
        expiration=found.expiration,
        aiohttp_session=session,
    )


async def _cut_down(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    response = await handler(request)
    response.content = _TruncatedContent(response.content)  # type: ignore[assignment]
    return response


class _TruncatedContent:
    """The body of an answer, each line or all of it cut down to what can be parsed."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def read(self, n: int = -1) -> bytes:
        """All of it: nobody reads parts of a list."""
        return truncated(await self._content.read(n))

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        """Whole lines, as they come."""
        rest = b""
        async for part in self._content.iter_chunked(n):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield truncated(line) + b"\n"
        if rest:
            yield truncated(rest)


def _watch(registry: kopf.OperatorRegistry, kind: Kind, route: Any) -> None:
    # Async, so that kopf calls it in its event loop: a thread per event would cost more than the work.
    async def handle(event: Any, body: Any, **_: Any) -> None:
        route(kind, event, body)

    handle.__name__ = f"on_{kind.plural}"
    kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(handle)


class _NoDifference(kopf.DiffBaseStorage):
    """For handlers of events, which compare nothing: copying each object was half of an event's cost."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        pass


class _Backoffs:
    """Seconds before each further attempt of a request, without end.

    If they ended, so would the process, and with it the watches of all namespaces: one of them that is deleted,
    or takes the operator's rights away, is refused for good.
    """

    def __iter__(self) -> Iterator[float]:
        """From the start: kopf begins anew with each request."""
        yield from (1.0, 1.0, 2.0, 3.0)
        while True:
            yield 5.0


def kopf_settings(watch_seconds: float = SERVER_SECONDS) -> kopf.OperatorSettings:
    """Watch with timeouts, and write nothing."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = max(1, round(watch_seconds))
    settings.watching.client_timeout = watch_seconds + 30
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Backoffs()
    settings.queueing.idle_timeout = 1.0
    settings.process.ultimate_exiting_timeout = 60
    # kopf should never write. If it does, then under our own name.
    settings.persistence.finalizer = f"{api.GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
        prefix=api.GROUP, v1=False
    )
    settings.persistence.diffbase_storage = _NoDifference()
    return settings
