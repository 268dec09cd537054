"""What the conditions say when a pass failed as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from isoloss_operator.decide.conditions import (
    READY,
    RECONCILING,
    STALLED,
    Finding,
    dated,
    parse_conditions,
    stands,
)
from isoloss_operator.decide.reasons import Reason


def internal_error(error: Exception) -> Finding:
    """An exception that nobody foresaw."""
    message = (
        f"{type(error).__name__}: {error}. This is a bug in the operator, whose log has the trace; "
        "it tries again."
    )
    return Finding.false(Reason.INTERNAL_ERROR, message)


def request_refused(error: Exception) -> Finding:
    """The API server does not let the operator read, or write, what a pass needs."""
    return Finding.false(Reason.REQUEST_REFUSED, f"{error}; tried again.")


def api_server_unavailable(error: Exception) -> Finding:
    """Passes fail one after another for want of an answer, but the API server takes statuses."""
    return Finding.false(Reason.API_SERVER_UNAVAILABLE, f"{error}; tried again.")


def failed_pass(
    status: Mapping[str, Any], generation: int, now: datetime, finding: Finding
) -> dict[str, Any]:
    """The status as it was, with conditions that say why the pass failed.

    What was Ready under this generation stays so: the failure says nothing about the answer.
    """
    previous = parse_conditions(status)
    found = {kind: Finding.of(condition) for kind, condition in previous.items()}
    if not stands(previous, generation):
        found[READY] = finding
    found[STALLED] = finding
    found[RECONCILING] = Finding.true(finding.reason, finding.message)
    conditions = [
        condition.document()
        for condition in dated(found, previous, generation=generation, now=now)
    ]
    return {**status, "observedGeneration": generation, "conditions": conditions}
