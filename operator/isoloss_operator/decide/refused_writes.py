"""What the conditions say where the store or the API server refused a write of the last pass."""

from __future__ import annotations

from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.observation import ObservedTasks
from isoloss_operator.decide.reasons import Reason


def storage_not_writable(observed: ObservedTasks) -> Finding | None:
    """Nothing starts or stops before the store knows of it, so that nothing can be lost."""
    error = observed.store_write_error
    return Finding.false(Reason.STORAGE_NOT_WRITABLE, error) if error else None


def request_refused(observed: ObservedTasks) -> Finding | None:
    """A write without which the others made sense."""
    error = observed.write_error
    return Finding.false(Reason.REQUEST_REFUSED, error) if error else None
