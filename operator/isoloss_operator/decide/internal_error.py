"""What the conditions say when a pass failed in a way that nobody foresaw."""

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
)
from isoloss_operator.decide.reasons import Reason


def internal_error(
    status: Mapping[str, Any], generation: int, now: datetime, error: Exception
) -> dict[str, Any]:
    """The status as it was, with conditions that name the error.

    What was Ready under this generation stays so: the bug says nothing about the answer.
    """
    previous = parse_conditions(status)
    found = {kind: Finding.of(condition) for kind, condition in previous.items()}
    message = (
        f"{type(error).__name__}: {error}. This is a bug in the operator, whose log has the trace; "
        "it tries again."
    )
    bug = Finding.false(Reason.INTERNAL_ERROR, message)
    ready = previous.get(READY)
    stands = ready and ready.status == "True" and ready.observed_generation == generation
    if not stands:
        found[READY] = bug
    found[STALLED] = Finding.false(Reason.INTERNAL_ERROR, message)
    found[RECONCILING] = Finding.true(Reason.INTERNAL_ERROR, message)
    conditions = [
        condition.model_dump(mode="json", by_alias=True, exclude_none=True)
        for condition in dated(found, previous, generation=generation, now=now)
    ]
    return {**status, "observedGeneration": generation, "conditions": conditions}
