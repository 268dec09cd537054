"""What the API server itself says of a Job or pod that does not start: the newest warning about it."""

import logging
import time
from collections.abc import Callable, Sequence

from isoloss_operator.cluster.client import EVENT, Cluster, NotFound, Refused

KEPT_SECONDS = 60.0
"""How long an answer is kept: controllers repeat their warnings for minutes."""
MAX_KEPT = 1024
MAX_MESSAGE = 500

logger = logging.getLogger(__name__)


class EventReader:
    """Reads events about objects by name. Thread-safe: losing an answer costs a request."""

    def __init__(self, cluster: Cluster, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._kept: dict[tuple[str, str], tuple[float, str]] = {}

    def newest_warning(self, namespace: str, names: Sequence[str]) -> str:
        """The newest warning of the first of these objects that has one, such as "FailedMount: MountVolume.SetUp
        failed"; empty: none.

        Raises Unavailable.
        """
        return next((warning for name in names if (warning := self._of(namespace, name))), "")

    def _of(self, namespace: str, name: str) -> str:
        now = self._clock()
        known = self._kept.get((namespace, name))
        if known is not None and now - known[0] < KEPT_SECONDS:
            return known[1]
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        warning = self._read(namespace, name)
        self._kept[namespace, name] = (now, warning)
        return warning

    def _read(self, namespace: str, name: str) -> str:
        fields = f"regarding.name={name},type=Warning"
        try:
            found = list(self._cluster.list(EVENT, namespace, fields=fields))
        except (Refused, NotFound) as error:
            logger.warning("Events about %s cannot be read: %s", name, error)
            return ""
        if not found:
            return ""
        newest = max(found, key=_last_seen)
        return f"{newest.get('reason') or 'Warning'}: {newest.get('note') or ''}"[:MAX_MESSAGE]


def _last_seen(event: dict[str, object]) -> str:
    """Times of one format compare as texts; which of the fields is set depends on who reported."""
    series = event.get("series")
    last = series.get("lastObservedTime") if isinstance(series, dict) else None
    times = (last, event.get("deprecatedLastTimestamp"), event.get("eventTime"))
    return max(str(each) for each in times if each) if any(times) else ""
