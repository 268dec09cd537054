"""Kubernetes events on our resources (events.k8s.io/v1): for transitions only, never one per point."""

import hashlib
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from isoloss.formatting import shortened
from isoloss_operator.cluster.client import EVENT, FIELD_MANAGER, Cluster, ClusterError, Conflict
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.plans import Event

MAX_NOTE = 1024
"""The API server's limit on an event's text, in bytes: it drops one that is longer."""

logger = logging.getLogger(__name__)


def send_events(cluster: Cluster, owner: Owner, identity: str, events: Iterable[Event]) -> None:
    """Send events. One that cannot be sent is logged and dropped, as Kubernetes' own components do."""
    for event in events:
        now = datetime.now(UTC)
        try:
            cluster.create(EVENT, owner.namespace, event_body(event, owner, identity, now))
        except Conflict:
            continue
        except ClusterError as error:
            logger.warning("Event %s on %s not sent: %s", event.reason, owner.name, error)


def event_body(event: Event, owner: Owner, identity: str, now: datetime) -> dict[str, Any]:
    """The event's manifest. Equal events within a minute have equal names: the second is a conflict."""
    minute = now.strftime("%Y%m%d%H%M")
    text = "\n".join((owner.uid, event.reason, event.message, minute))
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": f"{owner.name[:200]}.{hashlib.sha256(text.encode()).hexdigest()[:16]}",
            "namespace": owner.namespace,
        },
        "type": event.type,
        "reason": event.reason[:128],
        "action": "Reconcile",
        "note": shortened(event.message, MAX_NOTE),
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": FIELD_MANAGER,
        "reportingInstance": identity[:128],
        "regarding": {
            "apiVersion": owner.kind.api_version,
            "kind": owner.kind.kind,
            "namespace": owner.namespace,
            "name": owner.name,
            "uid": owner.uid,
        },
    }
