"""fit.json as the operator writes it next to laws.json: what the newest fit was given and how it ended."""

from __future__ import annotations

from pydantic import Field

from isoloss_contract import layout
from isoloss_contract.records import Report
from isoloss_contract.store import NotFound, Store


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
