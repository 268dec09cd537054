"""Input and output of a fit: what the operator and the process of a fit share."""

from dataclasses import dataclass
from typing import Literal

from isoloss_operator.decide.fits import FitOutcome, Request, Work


@dataclass(frozen=True)
class FitJob:
    """A request with what its process needs besides."""

    request: Work
    store_uri: str
    tokenizer: str | None
    """Digest of the corpus' tokenizer."""
    title: str
    """Title of the report."""
    store_anchor: str = ""
    """Storage.anchor of the store."""


@dataclass(frozen=True)
class LawsStored:
    """The laws of a fit are in the store; its report is still to come."""

    outcome: FitOutcome


@dataclass(frozen=True)
class NotFitted:
    """The fit could not run (store, memory, time). It says nothing about its inputs."""

    message: str
    may_pass: bool = False
    """Of itself: the store does not answer, say."""


FitEnd = FitOutcome | NotFitted


def failed(request: Request, error: str, *, may_pass: bool = False) -> FitOutcome:
    """The outcome of a fit that gave no laws."""
    return FitOutcome(
        inputs=request.inputs,
        laws=None,
        ledger_sha256=request.ledger_sha256,
        error=error,
        may_pass=may_pass,
    )


def fit_result(end: FitEnd) -> Literal["fitted", "refused", "failed", "drawn"]:
    """How a fit ended: with laws, with laws that the data do not support, without any, or with a page alone.

    That of a search which begins has no data yet.
    """
    if isinstance(end, NotFitted):
        return "failed"
    if end.is_page:
        return "drawn" if end.report_written else "failed"
    if end.laws is None:
        return "failed" if end.step is None else "refused"
    return "refused" if end.laws.status == "refused" else "fitted"
