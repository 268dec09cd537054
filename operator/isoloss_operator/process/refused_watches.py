"""Namespaces that the API server no longer lets us watch: they are gone, or the operator's Role in them is.

Their watches are tried for ever, and no other namespace suffers. It is said once in the log, and by a gauge for
as long as it lasts.
"""

import logging
import threading
from collections.abc import Sequence
from http import HTTPStatus

from prometheus_client import Gauge

EVERY_NAMESPACE = "*"
"""How the gauge names the watch of all namespaces."""

logger = logging.getLogger(__name__)


class RefusedWatches:
    """Told by each watch how it was answered. Thread-safe."""

    def __init__(self, gauge: Gauge, namespaces: Sequence[str]) -> None:
        """No namespaces: all."""
        self._gauge = gauge
        self._lock = threading.Lock()
        self._refused: dict[str, set[str]] = {}
        """Kinds in the plural, by namespace."""
        for namespace in namespaces or ("",):
            gauge.labels(namespace or EVERY_NAMESPACE).set(0)

    def answered(self, namespace: str, plural: str, status: int) -> None:
        """A list or watch of a kind was answered; the namespace is empty if it is of all."""
        is_refused = status == HTTPStatus.FORBIDDEN
        if not is_refused and status >= HTTPStatus.BAD_REQUEST:
            return  # this says nothing about our rights
        with self._lock:
            refused = self._refused.setdefault(namespace, set())
            was_refused = bool(refused)
            if is_refused:
                refused.add(plural)
            else:
                refused.discard(plural)
            still_refused = bool(refused)
            self._gauge.labels(namespace or EVERY_NAMESPACE).set(still_refused)
        place = f"namespace {namespace}" if namespace else "all namespaces"
        if still_refused and not was_refused:
            logger.warning(
                "The API server refuses the watch of %s in %s. It is retried; "
                "other namespaces are served meanwhile",
                plural,
                place,
            )
        if was_refused and not still_refused:
            logger.warning("The API server allows the watches of %s again", place)
