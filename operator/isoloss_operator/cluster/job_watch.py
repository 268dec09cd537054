"""Watches our Jobs by their metadata: an event says only that a Job changed, and its sweep reads it live.

Not through kopf, which parses each Job whole and has a task for each: with 5,000 Jobs at once that took more
time than all passes together.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubernetes.client import ApiClient

from isoloss_operator.cluster.client import FIELD_MANAGER, JOB, LONGEST_OWNER
from isoloss_operator.cluster.json_depth import parsed
from isoloss_operator.cluster.manifests import OWNER_ANNOTATION
from isoloss_operator.cluster.transport import (
    TRANSPORT_ERRORS,
    Refusal,
    Request,
    Transport,
)
from isoloss_operator.decide.observation import LABEL_OWNER_UID, LABEL_RECORDED

METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
# Of recorded Jobs there is no news, and of 10,000 they would be most of what is read at the start.
WATCHED = f"{LABEL_OWNER_UID},!{LABEL_RECORDED}"
SERVER_SECONDS = 300.0
"""The API server ends a watch after this time."""
SILENT_SECONDS = 330.0
"""A watch that neither delivers nor ends is broken. The watchdog notices sooner where it matters."""
RETRY_SECONDS = (1.0, 1.0, 2.0, 3.0, 5.0)
"""Before each further attempt; the last one from then on."""
OK, FORBIDDEN, GONE = 200, 403, 410
NONSENSE = (ValueError, LookupError, TypeError, AttributeError)
"""Raised if a line is not an event."""

Object = Mapping[str, Any]
Deliver = Callable[[Object, Object], None]
"""Gets an event with its `type`, and the Job with its metadata alone."""
OnAnswer = Callable[[str, str, int], None]
"""Gets the namespace of a watch (empty: all), the kind in the plural, and the HTTP status."""

logger = logging.getLogger(__name__)


class JobWatch:
    """The watch of one namespace, in a thread of its own; "" means all."""

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        deliver: Deliver,
        *,
        on_answer: OnAnswer = lambda _namespace, _plural, _status: None,
        server_seconds: float = SERVER_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        """`client` is for watches alone: each of them holds a connection."""
        self._transport = Transport(client, user_agent=FIELD_MANAGER)
        self._namespace = namespace
        self._deliver = deliver
        self._on_answer = on_answer
        self._stopped = threading.Event()
        self._server_seconds = server_seconds
        self._silent_seconds = silent_seconds
        self._retry_seconds = retry_seconds
        self._version = ""
        """Where the next watch begins: after this resourceVersion; empty: with every Job there is."""
        self._known: dict[str, Object] = {}
        """Jobs by uid, as they were last delivered."""

    def start(self) -> None:
        """Watch until `stop`, whatever the API server does."""
        # A daemon: a read from a connection cannot be interrupted.
        threading.Thread(target=self._keep, name="job-watch", daemon=True).start()

    def stop(self) -> None:
        """Deliver nothing more."""
        self._stopped.set()

    def _keep(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            before = self._version
            try:
                self._watch()
                failures = 0
            except Exception as error:  # it must not end the watch of all namespaces
                if self._stopped.is_set():
                    return  # it does not begin again
                failures = 0 if self._version != before else failures
                delay = self._retry_seconds[min(failures, len(self._retry_seconds) - 1)]
                failures += 1
                status = getattr(error, "status", 0)
                if status == GONE:
                    self._version = ""
                if status == FORBIDDEN:
                    self._on_answer(self._namespace, JOB.plural, status)
                message = str(error) or type(error).__name__
                # A namespace that is gone, or took our rights away, refuses for good: that is said once.
                is_known = status == FORBIDDEN and failures > 1
                level = logging.DEBUG if is_known else logging.WARNING
                is_bug = not isinstance(error, (Refusal, *NONSENSE, *TRANSPORT_ERRORS))
                text = "The watch of Jobs begins again in %.0f s: %s"
                logger.log(level, text, delay, message, exc_info=is_bug)
                self._stopped.wait(delay)

    def _watch(self) -> None:
        """Deliver the events of one watch until the API server ends it. Raises if that is an error."""
        if not self._version:
            # What happened meanwhile is lost: whoever had a Job looks for itself.
            known, self._known = self._known, {}
            for metadata in known.values():
                self._deliver({"type": "DELETED"}, {"metadata": metadata})
        is_empty = True
        with self._transport.stream(self._request(), self._silent_seconds) as lines:
            self._on_answer(self._namespace, JOB.plural, OK)
            for line in lines:
                if self._stopped.is_set():
                    return
                self._take(parsed(line))
                is_empty = False
        # A bookmark comes every minute: a proxy hangs up, and would at once again.
        if is_empty or not self._version:
            raise Refusal(200, "it ended before a bookmark")

    def _request(self) -> Request:
        query = [
            ("watch", "true"),
            ("labelSelector", WATCHED),
            ("timeoutSeconds", str(max(1, round(self._server_seconds)))),
            ("allowWatchBookmarks", "true"),
        ]
        query += [("resourceVersion", self._version)] if self._version else []
        return Request("GET", JOB.path(self._namespace), query=query, accept=METADATA_ONLY)

    def _take(self, event: Object) -> None:
        kind, body = event["type"], event["object"]
        if kind == "ERROR":
            raise Refusal(int(body.get("code") or 0), str(body.get("message") or ""))
        metadata = body["metadata"]
        # The Jobs that were there come first, as ADDED and in the order of their names: one may be newer than those
        # to come. What is not ADDED comes after all of them.
        if self._version or kind != "ADDED":
            self._version = metadata["resourceVersion"]
        if kind == "BOOKMARK":
            return
        if kind == "DELETED":
            self._known.pop(metadata["uid"], None)
        else:
            self._known[metadata["uid"]] = _identity(metadata)
        self._deliver(event, body)


def _identity(metadata: Object) -> Object:
    """What an event of deletion needs: of thousands of Jobs no more is kept."""
    kept = ("uid", "resourceVersion", "namespace", "name")
    owner = (metadata.get("annotations") or {}).get(OWNER_ANNOTATION, "")
    annotations = {OWNER_ANNOTATION: owner} if len(owner) <= LONGEST_OWNER else {}
    return {**{name: metadata.get(name) for name in kept}, "annotations": annotations}
