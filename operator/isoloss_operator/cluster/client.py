"""Every call to the API server. The client's exceptions become ours here.

Requests use the official client's authentication, TLS and connection pool, but not its models: those reject
pod template fields that the client does not know yet, and a list of Jobs takes six times the memory.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from kubernetes import config
from kubernetes.client import ApiClient, Configuration

from isoloss_operator import api
from isoloss_operator.cluster import transport
from isoloss_operator.cluster.json_depth import parsed
from isoloss_operator.cluster.rate_limit import RateLimit
from isoloss_operator.cluster.transport import ServerClock, pass_deadline

FIELD_MANAGER = "isoloss-operator"
CALL_SECONDS = 30.0
"""Limit of one call: the client has no default, and a thread cannot be cancelled."""
PAGE = 500
WRITES = ("POST", "PUT", "PATCH")
"""What names its field manager."""
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of object and its path in the API."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """As in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Path of one object, or of all in a namespace; in all namespaces if that is empty."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, "namespaces", quote(namespace, safe="")] if namespace else [root]
        parts += [self.plural]
        parts += [quote(name, safe="")] if name else []
        parts += [subresource] if subresource else []
        return "/".join(parts)


SWEEP = Kind(api.GROUP, api.VERSION, api.SWEEP_PLURAL, api.SWEEP_KIND)
PREDICTION = Kind(api.GROUP, api.VERSION, api.PREDICTION_PLURAL, api.PREDICTION_KIND)
JOB = Kind("batch", "v1", "jobs", "Job")
POD = Kind("", "v1", "pods", "Pod")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
EVENT = Kind("events.k8s.io", "v1", "events", "Event")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")


class ClusterError(Exception):
    """A call that failed. `expected`: not a bug, so it is logged without a traceback."""

    expected = True

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFound(ClusterError):
    """404: the object or the kind does not exist."""


class Conflict(ClusterError):
    """409: it exists already, or has changed since it was read."""


class Refused(ClusterError):
    """400, 403, 413, 422: the same call would fail again."""


class Unavailable(ClusterError):
    """Everything else: network, overload, timeouts. A retry may succeed."""


MAX_MESSAGE: Final = 600
"""Of what the API server says of a refusal: a condition has room for 800 bytes."""
MAX_CAUSES: Final = 3
KINDS_OF_ERROR: Mapping[int, type[ClusterError]] = {
    400: Refused,
    403: Refused,
    404: NotFound,
    409: Conflict,
    413: Refused,
    422: Refused,
}


def load_configuration(pool_size: int) -> Configuration:
    """The pod's service account, or else the kubeconfig. Raises ConfigException if there is neither."""
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        config.load_kube_config(client_configuration=configuration)
    # Threads beyond the pool's size would open a new connection per call.
    configuration.connection_pool_maxsize = pool_size
    return configuration


class Cluster:
    """Calls to the API server. Thread-safe."""

    def __init__(
        self,
        client: ApiClient,
        *,
        call_seconds: float = CALL_SECONDS,
        limit: RateLimit | None = None,
        on_call: Callable[[str, int, float], None] = lambda _method, _status, _seconds: None,
    ) -> None:
        """`on_call` gets the verb, HTTP status (0: no answer) and seconds of every request sent.

        `call_seconds` limit a call with all its waiting: for `limit`, and if the server is overloaded and
        asks to come back later.
        """
        self._transport = transport.Transport(client, user_agent=FIELD_MANAGER)
        self._call_seconds = call_seconds
        self._limit = limit or RateLimit()
        self.clock = ServerClock()
        self._on_call = on_call
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Refuse further calls: after a lost lease nothing may be written."""
        self._stopped.set()

    # --------------------------------------------------------------------------------- reading

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, past every cache; None if it does not exist."""
        try:
            return self._call("GET", kind.path(namespace, name))
        except NotFound:
            return None

    def list(
        self, kind: Kind, namespace: str, *, labels: str = "", fields: str = ""
    ) -> Iterator[Object]:
        """All objects that match the selectors, page by page.

        Raises Unavailable if the continue token expired in between.
        """
        query = [("limit", str(PAGE))]
        query += [("labelSelector", labels)] if labels else []
        query += [("fieldSelector", fields)] if fields else []
        proceed = ""
        while True:
            page = self._call(
                "GET",
                kind.path(namespace),
                query=[*query, ("continue", proceed)] if proceed else query,
            )
            yield from page.get("items") or ()
            proceed = page.get("metadata", {}).get("continue", "")
            if not proceed:
                return

    def served_kinds(self, group: str, version: str) -> frozenset[str]:
        """Plural names of the kinds that the API server serves in a group and version."""
        try:
            answer = self._call("GET", f"/apis/{group}/{version}")
        except NotFound:
            return frozenset()
        return frozenset(item["name"] for item in answer.get("resources", ()))

    # --------------------------------------------------------------------------------- writing

    def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        """Create an object. Raises Conflict if it exists."""
        # Strict: the API server would otherwise drop a misspelt field of a pod template silently.
        query = [("fieldValidation", "Strict")]
        return self._call("POST", kind.path(namespace), body=body, query=query)

    def replace(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        """Replace an object. Raises Conflict if its resourceVersion is outdated."""
        return self._call("PUT", kind.path(namespace, name), body=body)

    def patch(self, kind: Kind, namespace: str, name: str, change: Object) -> Object:
        """Merge `change` into an object (RFC 7386).

        Raises Conflict if `change` names a uid or resourceVersion that is no longer the object's.
        """
        return self._call("PATCH", kind.path(namespace, name), body=change, content_type=MERGE)

    def apply_status(self, kind: Kind, read: Mapping[str, Any], status: Object) -> Object:
        """Server-side apply the status of an object whose metadata is `read`.

        Raises Conflict if the object has changed or was recreated, and NotFound if it is gone: an apply with
        a resourceVersion never creates.
        """
        namespace, name = read["namespace"], read["name"]
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "resourceVersion": read["resourceVersion"],
            },
            "status": status,
        }
        # With force: what others have written into the status is not theirs.
        query, path = [("force", "true")], kind.path(namespace, name, "status")
        return self._call("PATCH", path, body=body, query=query, content_type=APPLY)

    def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete an object in the foreground. Does nothing if it is gone or was recreated."""
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": uid},
        }
        try:
            self._call("DELETE", kind.path(namespace, name), body=body)
        except (NotFound, Conflict):
            return

    # ------------------------------------------------------------------------------- transport

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        query: Sequence[tuple[str, str]] = (),
        content_type: str = "application/json",
    ) -> Object:
        if method in WRITES:
            query = [("fieldManager", FIELD_MANAGER), *query]
        request = transport.Request(method, path, body, query, content_type)
        deadline = min(time.monotonic() + self._call_seconds, pass_deadline())
        try:
            try:
                answer = self._answer(request, deadline)
            except transport.BROKEN_CONNECTION:
                if method != "GET":  # a write may have been carried out
                    raise
                answer = self._answer(request, deadline)
        except transport.TRANSPORT_ERRORS as error:
            raise Unavailable(f"{request}: {type(error).__name__}: {error}") from error
        return _checked(request, answer)

    def _answer(self, request: transport.Request, deadline: float) -> transport.Answer:
        """The server's answer, waited for while it is overloaded. Raises TRANSPORT_ERRORS, Unavailable."""
        while True:
            if self._stopped.is_set():
                raise Unavailable(f"{request}: this process no longer leads")
            if not self._limit.wait(deadline):
                raise Unavailable(f"{request}: no time is left to send it")
            answer = self._send(request, deadline)
            if not answer.is_overloaded:
                return answer
            # Not even begun by the server, so that any verb may be sent again.
            self._limit.pause(answer.retry_after)
            if time.monotonic() >= deadline:
                return answer

    def _send(self, request: transport.Request, deadline: float) -> transport.Answer:
        status, began = 0, time.monotonic()
        try:
            answer = self._transport.send(request, deadline)
            status = answer.status
        finally:
            self._on_call(request.method, status, time.monotonic() - began)
        self.clock.saw(answer.date, answer.date_age)
        return answer


def _checked(request: transport.Request, answer: transport.Answer) -> Object:
    """The answer's object. Raises ClusterError if it is none or a refusal."""
    if answer.status >= 400:
        kind = KINDS_OF_ERROR.get(answer.status, Unavailable)
        raise kind(f"{request}: {answer.status} {_message(answer.content)}", answer.status)
    try:
        found = parsed(answer.content)
    except ValueError as error:
        raise Unavailable(f"{request}: the answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Unavailable(f"{request}: the answer is not an object")
    return found


def _message(content: bytes) -> str:
    """The message of the Status object, or the start of a proxy's answer.

    Of a long one the middle goes: it is a template in Go's notation, behind it stands what is wrong. Each field that is
    refused is named.
    """
    try:
        status = json.loads(content)
        message = str(status["message"])
        if len(message) <= MAX_MESSAGE:
            return message
        causes = (status.get("details") or {}).get("causes") or ()
        named = [f"{each['field']}: {each['message']}" for each in causes if each.get("field")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return content[:200].decode(errors="replace")
    room = MAX_MESSAGE // max(1, len(named[:MAX_CAUSES]))
    return "; ".join(_cut(each, room) for each in named[:MAX_CAUSES]) or _cut(message, MAX_MESSAGE)


def _cut(text: str, room: int) -> str:
    """Without its middle if it is longer than that."""
    if len(text) <= room:
        return text
    end = room // 2
    return f"{text[: room - end - 3]} … {text[-end:]}"


KINDS = {kind.kind: kind for kind in (SWEEP, PREDICTION)}
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
LONGEST_NAME = 253
LONGEST_OWNER = max(map(len, KINDS)) + 1 + LONGEST_NAME
"""Characters of a text that `owner_key` takes."""


@dataclass(frozen=True)
class ResourceKey:
    """A ScalingSweep or HyperparamPrediction by name. A recreated one has the same key."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}"


def owner_key(namespace: str, owner: str) -> ResourceKey | None:
    """The key of the resource that a Job names as KIND/NAME; None if there can be no such resource.

    Whoever may write Jobs may name anything, and nothing else would ever take such a key from the queue.
    """
    kind, _, name = owner.partition("/")
    if kind not in KINDS or len(name) > LONGEST_NAME or not DNS_NAME.fullmatch(name):
        return None
    return ResourceKey(KINDS[kind], namespace, name)
