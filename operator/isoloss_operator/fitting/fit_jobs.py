"""What a fit is asked and what comes of it: all that the operator and a fit's process share."""

from __future__ import annotations

from dataclasses import dataclass

from isoloss_operator.decide.fits import FitOutcome, FitRequest


@dataclass(frozen=True)
class FitJob:
    """A FitRequest and what else a process needs to know for it."""

    request: FitRequest
    store_uri: str
    tokenizer: str | None
    """Digest of the corpus' tokenizer."""
    title: str
    """Of the report."""


@dataclass(frozen=True)
class NotFitted:
    """The fit was kept from its work (store, memory, time): nothing is known of its inputs."""

    message: str


Answer = FitOutcome | NotFitted


def failed(request: FitRequest, error: str) -> FitOutcome:
    """The outcome of a fit that did not get to laws."""
    return FitOutcome(
        inputs=request.inputs, laws=None, ledger_sha256=request.ledger_sha256, error=error
    )
