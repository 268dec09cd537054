"""The only module that calls the API server. Its exceptions become ours here and nowhere else.

Requests go through the official client's authentication, TLS and connection pool, but not through
its models: those refuse fields of pod templates that the client does not know yet, and cost six
times the memory for a list of Jobs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration

from isoloss_operator import api

FIELD_MANAGER = "isoloss-operator"
TIMEOUT = (5, 30)
"""Seconds to connect and to read: the client has no default, and a thread can not be cancelled."""
PAGE = 500
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of object and where the API server keeps it."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """As in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Path of one object, or of all in a namespace."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, "namespaces", quote(namespace, safe=""), self.plural]
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
    """The API server did not do what was asked. `expected`: the world's fault, not a bug."""

    expected = True

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFound(ClusterError):
    """404: the object, or the kind, is not there."""


class Conflict(ClusterError):
    """409: it exists already, or somebody changed it since it was read."""


class Refused(ClusterError):
    """400, 403, 413, 422: asking again without changing something can not help."""


class Unavailable(ClusterError):
    """Everything else: network, overload, timeouts. Asking again may help."""


KINDS_OF_ERROR: Mapping[int, type[ClusterError]] = {
    400: Refused,
    403: Refused,
    404: NotFound,
    409: Conflict,
    413: Refused,
    422: Refused,
}


def load_configuration(pool_size: int) -> Configuration:
    """The pod's service account, or else the kubeconfig. Raises ConfigException where neither is."""
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    # Threads beyond the pool would open and throw away a connection per call.
    configuration.connection_pool_maxsize = pool_size
    return configuration


class Cluster:
    """Calls to the API server. Thread-safe."""

    def __init__(
        self,
        client: ApiClient,
        *,
        on_call: Callable[[str, int], None] = lambda _method, _status: None,
    ) -> None:
        """`on_call` hears of every call: its verb and HTTP status (0: no answer)."""
        client.user_agent = FIELD_MANAGER
        self._client = client
        self._on_call = on_call
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Refuse every further call: after a lost lease nothing more may be written."""
        self._stopped.set()

    # --------------------------------------------------------------------------------- reading

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, read past every cache; None where it is not there."""
        try:
            return self._call("GET", kind.path(namespace, name))
        except NotFound:
            return None

    def list(
        self, kind: Kind, namespace: str, *, labels: str = "", fields: str = ""
    ) -> Iterator[Object]:
        """All objects that match the selectors, page by page.

        Raises Unavailable where the list changed so much meanwhile that its pages expired.
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
        """Create an object. Raises Conflict where one of that name exists."""
        # Strict: a misspelt field of a pod template is refused, not silently dropped.
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
        return self._call("POST", kind.path(namespace), body=body, query=query)

    def replace(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        """Replace an object. Raises Conflict where its resourceVersion is no longer the newest."""
        query = [("fieldManager", FIELD_MANAGER)]
        return self._call("PUT", kind.path(namespace, name), body=body, query=query)

    def patch(self, kind: Kind, namespace: str, name: str, change: Object) -> Object:
        """Merge `change` into an object (RFC 7386)."""
        query = [("fieldManager", FIELD_MANAGER)]
        return self._call(
            "PATCH", kind.path(namespace, name), body=change, query=query, content_type=MERGE
        )

    def apply(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        """Server-side apply: own exactly the fields in `body`, taking them from other managers."""
        return self._apply(kind.path(namespace, name), kind, namespace, name, body)

    def apply_status(self, kind: Kind, read: Mapping[str, Any], status: Object) -> Object:
        """Server-side apply the status of the object that was `read`.

        Raises Conflict where it has changed since, or is another of the same name, and NotFound
        where it is gone: with a resourceVersion, an apply never creates.
        """
        namespace, name = read["namespace"], read["name"]
        body = {"metadata": {"resourceVersion": read["resourceVersion"]}, "status": status}
        return self._apply(kind.path(namespace, name, "status"), kind, namespace, name, body)

    def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete an object once all that it owns is gone; fine where it is gone or another."""
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

    def _apply(self, path: str, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        metadata = {"name": name, "namespace": namespace, **body.get("metadata", {})}
        whole = {**body, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        return self._call("PATCH", path, body=whole, query=query, content_type=APPLY)

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
        if self._stopped.is_set():
            raise Unavailable(f"{method} {path}: this process no longer leads")
        status = 0
        try:
            status, content = self._send(method, path, body, query, content_type)
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            raise Unavailable(f"{method} {path}: {type(error).__name__}: {error}") from error
        finally:
            self._on_call(method, status)
        if status >= 400:
            raise KINDS_OF_ERROR.get(status, Unavailable)(
                f"{method} {path}: {status} {_message(content)}", status
            )
        answer: Object = json.loads(content)
        return answer

    def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Sequence[tuple[str, str]],
        content_type: str,
    ) -> tuple[int, bytes]:
        verb, url, headers, _, _ = self._client.param_serialize(
            method,
            path,
            query_params=list(query),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        # The body goes in after param_serialize, which would walk through all of it once more.
        answer = self._client.call_api(verb, url, headers, body, _request_timeout=TIMEOUT)
        return answer.status, answer.read()  # type: ignore[no-untyped-call]


def _message(content: bytes) -> str:
    """The Status object's message, or the start of whatever a proxy answered instead."""
    try:
        return str(json.loads(content)["message"])[:2000]
    except (ValueError, KeyError, TypeError):
        return content[:200].decode(errors="replace")
