"""The reference page of condition reasons and event reasons, from the code that gives them."""

import ast
import inspect
from enum import StrEnum

from isoloss.search import Reason as SearchReason
from isoloss.search import StopReason
from isoloss_operator.decide.jobs import UNCHARGED, FailureClass
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.generate.advice import ADVICE, FAILURES, REFUSALS
from isoloss_operator.generate.apidoc import table

REASONS_INTRODUCTION = """\
# Reasons

Written by `python -m isoloss_operator.generate.crdgen`.

Conditions have the reasons of the first two tables; events have these and those of the third. A message may begin
with the trainer's own code, such as CudaUnavailable. Wait for `Ready`; `Stalled=True` means that nothing happens until you
change something. *Retried* means with growing delays; nothing is lost meanwhile."""


def reasons_page() -> str:
    """Markdown: every reason with its meaning and what to do."""
    meanings, failures = member_texts(Reason), member_texts(FailureClass)
    parts = [
        REASONS_INTRODUCTION,
        "## Conditions and events",
        table(
            ("reason", "meaning", "what to do"),
            ((f"`{reason}`", meanings[reason.name], ADVICE[reason]) for reason in Reason),
        ),
        "## Refusals of the laws",
        "In `FitReady` and `Ready` of a sweep, and in `Ready` and `Validated` of a prediction. The message has the numbers.",
        table(
            ("reason", "meaning", "what to do"),
            ((f"`{reason}`", *texts) for reason, texts in REFUSALS.items()),
        ),
        "## Attempts that ended without a result",
        "In events of a sweep and in `status.failures`. Only what is charged counts against `failurePolicy.retriesPerPoint`.",
        table(
            ("reason", "meaning", "charged", "what to do"),
            (
                (
                    f"`{each}`",
                    failures[each.name],
                    "no" if each in UNCHARGED else "yes",
                    FAILURES[each],
                )
                for each in FailureClass
            ),
        ),
        "## Searches",
        "Why a sequential search is over, in `status.search.ended` and `Ready`.",
        _meanings(StopReason),
        "Why it wanted a point, in the ledger and in the events `SearchStep`.",
        _meanings(SearchReason),
    ]
    return "\n\n".join(parts) + "\n"


def _meanings(kind: type[StrEnum]) -> str:
    texts = member_texts(kind)
    return table(("reason", "meaning"), ((f"`{each}`", texts[each.name]) for each in kind))


def member_texts(kind: type[StrEnum]) -> dict[str, str]:
    """The text below each member of an enumeration, by the member's name; empty if there is none."""
    source = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(source, ast.ClassDef)
    texts = dict.fromkeys(kind.__members__, "")
    for member, text in zip(source.body, source.body[1:], strict=False):
        if not isinstance(member, ast.Assign) or not isinstance(text, ast.Expr):
            continue
        if isinstance(text.value, ast.Constant) and isinstance(member.targets[0], ast.Name):
            texts[member.targets[0].id] = " ".join(str(text.value.value).split())
    return texts
