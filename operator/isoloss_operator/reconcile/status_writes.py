"""Writing the status: what was decided, or why nothing could be; how often that is, and how often a resource is looked at
without cause."""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from isoloss_operator.api.statuses import parse_conditions
from isoloss_operator.cluster import client
from isoloss_operator.cluster.events import send_events
from isoloss_operator.decide.conditions import dated, was_ready
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.reasons import READY, RECONCILING, STALLED, Finding, Reason
from isoloss_operator.reconcile.memory import UNANSWERED_PASSES
from isoloss_operator.reconcile.resource import Resource, Services
from isoloss_operator.settings import Settings

logger = logging.getLogger(__name__)


class StatusChanged(Exception):
    """The object is no longer the one that was read: its status must not state what was decided."""

    expected = True


@contextlib.contextmanager
def reporting_failures(services: Services, resource: Resource) -> Iterator[None]:
    """Report in the conditions when a pass as a whole is refused, gets no answer again and again, or fails in an
    unforeseen way.

    The error goes on to the queue, which tries again later.
    """
    try:
        yield
        resource.memory.unanswered = 0
    except client.Unavailable as error:
        resource.memory.unanswered += 1
        if resource.memory.unanswered >= UNANSWERED_PASSES:
            _report(services, resource, tried_again(Reason.API_SERVER_UNAVAILABLE, error))
        raise
    except client.Refused as error:
        _report(services, resource, tried_again(Reason.REQUEST_REFUSED, error))
        raise
    except Exception as error:
        if not getattr(error, "expected", False):
            _report(services, resource, internal_error(error))
        raise


def _report(services: Services, resource: Resource, finding: Finding) -> None:
    """Never raises: the error of the pass is the one to be logged."""
    body, now = resource.body, services.cluster.clock.now()
    generation = body["metadata"].get("generation", 0)
    try:
        try:
            document = failed_pass(body.get("status") or {}, generation, now, finding)
            write_status(services, resource, document, ())
        except client.Refused:
            # For what stands in the status, perhaps: say at least why nothing is written.
            document = failed_pass({}, generation, now, finding)
            write_status(services, resource, document, ())
    except (client.ClusterError, StatusChanged) as failed:
        owner = resource.owner
        logger.warning("%s %s: cannot report: %s", owner.kind.kind, owner.name, failed)


def write_status(
    services: Services,
    resource: Resource,
    document: Mapping[str, Any],
    events: tuple[Event, ...],
) -> float:
    """Apply the status if it changed, then send events, owed ones first; seconds until it may be written again.

    Conditions are written at once; numbers alone as `status_pause` says. Raises StatusChanged if what was read is no longer the newest.
    """
    owner, memory, body = resource.owner, resource.memory, resource.body
    before = body.get("status") or {}
    if document == before:
        _send(services, resource, ())
        return math.inf
    since_written = time.monotonic() - memory.written_at
    if wait := status_pause(before, document, since_written, services.settings):
        memory.owe(events)  # none is of a condition: those are not kept waiting
        return wait
    try:
        services.cluster.apply_status(owner.kind, body["metadata"], dict(document))
    except (client.NotFound, client.Conflict) as error:
        raise StatusChanged(f"{owner.kind.kind} {owner.name} changed meanwhile") from error
    memory.written_at = time.monotonic()
    _send(services, resource, events)
    return math.inf


def _send(services: Services, resource: Resource, events: tuple[Event, ...]) -> None:
    owner, memory = resource.owner, resource.memory
    due, memory.unsent = dict.fromkeys((*memory.unsent, *events)), ()
    send_events(services.cluster, owner, services.settings.identity, due)


# -------------------------------------------------------------------------------------- how often


PROGRESS: Final = frozenset(
    {"active", "estimatedCompletion", "spentFlops", "acceleratorHours", "ledger"}
)
"""Fields of a status that change without a transition: all the time while something trains."""


def status_pause(
    before: Mapping[str, Any],
    document: Mapping[str, Any],
    since_written: float,
    settings: Settings,
) -> float:
    """Seconds until the status may be written, `since_written` seconds after it was written last.

    A turned condition is due at once; counts, laws and failures after a moment; mere progress seldom.
    """
    changed = {name for name in {*before, *document} if before.get(name) != document.get(name)}
    if "conditions" in changed:
        return 0.0
    is_progress = changed <= PROGRESS
    seldom, soon = settings.progress_interval_seconds, settings.status_interval_seconds
    return max(0.0, (seldom if is_progress else soon) - since_written)


def next_look(requeue_after: float, settings: Settings) -> float:
    """Seconds until the next pass without an event; `requeue_after` is what the decision asks for."""
    if requeue_after == math.inf:
        return settings.idle_seconds
    return min(requeue_after, settings.resync_seconds)


# -------------------------------------------------------------------------------- passes that failed


def internal_error(error: Exception) -> Finding:
    """An exception that nobody foresaw."""
    message = (
        f"{type(error).__name__}: {error}. This is a bug in the operator, whose log has the trace; "
        "it tries again."
    )
    return Finding(Reason.INTERNAL_ERROR, message)


def tried_again(reason: Reason, error: Exception) -> Finding:
    """The API server refuses what a pass needs, or passes fail one after another for want of its answer."""
    return Finding(reason, f"{error}; tried again.")


def failed_pass(
    status: Mapping[str, Any], generation: int, now: datetime, finding: Finding
) -> dict[str, Any]:
    """The status as it was, with conditions that say why the pass failed.

    What was Ready under this generation stays so: the failure says nothing about the answer. Of what the other
    conditions say, no pass has looked at a new generation: each keeps its own.
    """
    previous = parse_conditions(status)
    found = {kind: Finding.of(condition) for kind, condition in previous.items()}
    if not was_ready(previous, generation):
        found[READY] = finding
    found[STALLED] = finding
    found[RECONCILING] = Finding(finding.reason, finding.message, "True")
    rewritten = (READY, STALLED, RECONCILING)
    conditions = [
        condition.document()
        for kind, each in found.items()
        for condition in dated(
            {kind: each},
            previous,
            generation=generation if kind in rewritten else previous[kind].observed_generation,
            now=now,
        )
    ]
    return {**status, "observedGeneration": generation, "conditions": conditions}
