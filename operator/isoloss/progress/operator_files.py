"""What the operator writes next to a sweep's ledger: status.json, which has what kubectl shows, for users with access to the
store only, and fit.json next to laws.json."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from isoloss_contract import layout
from isoloss_contract.records import Report
from isoloss_contract.store import NotFound, Store


class _Shown(Report):
    """Part of the status. Only what is shown here is read, and that strictly."""

    model_config = ConfigDict(alias_generator=to_camel)


class Condition(_Shown):
    """One of status.conditions."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0


class Law(_Shown):
    """A law in words."""

    status: str = ""
    formula: str = ""
    reason: str = ""


class Metadata(_Shown):
    """Which sweep it is."""

    name: str
    namespace: str
    uid: str
    generation: int


class SweepStatus(_Shown):
    """What `isoloss watch` shows of a sweep in addition to its maps."""

    conditions: list[Condition] = Field(default_factory=list, max_length=32)
    points: dict[str, int] = Field(default_factory=dict)
    planned_flops: str = ""
    estimated_completion: str = ""
    learning_rate_law: Law | None = None
    batch_size_law: Law | None = None
    loss_compute_law: Law | None = None


class StoredStatus(_Shown):
    """status.json."""

    metadata: Metadata
    status: SweepStatus


def read_status(store: Store, folder: str) -> dict[str, Any]:
    """The parts of the resource that are shown, as kubectl would print them; {} before the first copy.

    Raises BadRecord naming the file and the field, and StoreUnavailable.
    """
    try:
        found = store.read_record(layout.status_in(folder), StoredStatus)
    except NotFound:
        return {}
    return found.model_dump(by_alias=True, exclude_none=True)


class FitSummary(Report):
    """What is needed here of fit.json."""

    points: int = Field(ge=0)
    """Runs that the fit was given."""
    laws_sha256: str = Field(default="", max_length=64)
    """Digest of laws.json; empty if there are none."""
    error: str = Field(default="", max_length=2048)
    """Why the fit failed, in a sentence."""


def read_fit(store: Store, folder: str) -> FitSummary | None:
    """The newest fit of the sweep in `folder`; None if there was none.

    Raises BadRecord or StoreUnavailable.
    """
    try:
        return store.read_record(layout.fit_in(folder), FitSummary)
    except NotFound:
        return None
