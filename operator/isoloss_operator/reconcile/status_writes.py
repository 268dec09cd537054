"""Writing the status: what was decided, or why nothing could be."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from isoloss_operator.api.statuses import StatusType
from isoloss_operator.cluster.client import (
    ClusterError,
    Conflict,
    NotFound,
    Refused,
    Unavailable,
)
from isoloss_operator.cluster.events import send_events
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.conditions import (
    Finding,
    api_server_unavailable,
    failed_pass,
    internal_error,
    request_refused,
)
from isoloss_operator.decide.plans import Event
from isoloss_operator.reconcile.intervals import status_pause
from isoloss_operator.reconcile.memory import Memory
from isoloss_operator.reconcile.services import Services

logger = logging.getLogger(__name__)
Object = Mapping[str, Any]
UNANSWERED_PASSES = 5
"""In a row, before the conditions speak of it: seven seconds. One missed answer is nothing to tell."""


class StatusChanged(Exception):
    """The object is no longer the one that was read: its status must not state what was decided."""

    expected = True


def write_status(
    services: Services,
    owner: Owner,
    memory: Memory,
    body: Object,
    status: StatusType,
    events: tuple[Event, ...],
) -> float:
    """Apply the status if it changed, then send events, owed ones first; seconds until it may be written again.

    Conditions are written at once; numbers alone as intervals.py says. Raises
    StatusChanged if `body` is no longer the newest.
    """
    return _write(services, owner, memory, body, status.document(), events)


@contextlib.contextmanager
def reporting_failures(
    services: Services, owner: Owner, memory: Memory, body: Object
) -> Iterator[None]:
    """Report in the conditions when a pass as a whole is refused, gets no answer again and again, or fails in an
    unforeseen way.

    The error goes on to the queue, which tries again later.
    """
    try:
        yield
        memory.unanswered = 0
    except Unavailable as error:
        memory.unanswered += 1
        if memory.unanswered >= UNANSWERED_PASSES:
            _report(services, owner, memory, body, api_server_unavailable(error))
        raise
    except Refused as error:
        _report(services, owner, memory, body, request_refused(error))
        raise
    except Exception as error:
        if not getattr(error, "expected", False):
            _report(services, owner, memory, body, internal_error(error))
        raise


def _report(
    services: Services, owner: Owner, memory: Memory, body: Object, finding: Finding
) -> None:
    """Never raises: the error of the pass is the one to be logged."""
    generation, now = body["metadata"].get("generation", 0), services.cluster.clock.now()
    try:
        try:
            document = failed_pass(body.get("status") or {}, generation, now, finding)
            _write(services, owner, memory, body, document, ())
        except (
            Refused
        ):  # for what stands in the status, perhaps: say at least why nothing is written
            document = failed_pass({}, generation, now, finding)
            _write(services, owner, memory, body, document, ())
    except (ClusterError, StatusChanged) as failed:
        logger.warning("%s %s: cannot report: %s", owner.kind.kind, owner.name, failed)


def _write(
    services: Services,
    owner: Owner,
    memory: Memory,
    body: Object,
    document: Mapping[str, Any],
    events: tuple[Event, ...],
) -> float:
    before = body.get("status") or {}
    if document == before:
        _send(services, owner, memory, ())
        return math.inf
    since_written = time.monotonic() - memory.written_at
    if wait := status_pause(before, document, since_written, services.settings):
        memory.owe(events)  # none is of a condition: those are not kept waiting
        return wait
    try:
        services.cluster.apply_status(owner.kind, body["metadata"], dict(document))
    except (NotFound, Conflict) as error:
        raise StatusChanged(f"{owner.kind.kind} {owner.name} changed meanwhile") from error
    memory.written_at = time.monotonic()
    _send(services, owner, memory, events)
    return math.inf


def _send(services: Services, owner: Owner, memory: Memory, events: tuple[Event, ...]) -> None:
    due, memory.unsent = dict.fromkeys((*memory.unsent, *events)), ()
    send_events(services.cluster, owner, services.settings.identity, due)
