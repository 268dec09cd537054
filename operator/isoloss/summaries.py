"""Laws and answers in a few lines, as text and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from isoloss.formatting import (
    batch_size,
    flops,
    given,
    hyperparameter_formula,
    hyperparameter_quality,
    interval,
    learning_rate,
    loss_compute_formula,
    loss_compute_quality,
    number,
    surface_formula,
    surface_quality,
)

if TYPE_CHECKING:
    from isoloss.laws import Interval, Laws, Prediction, Refused

Rows = Sequence[Sequence[str]]
LAW_HEADS = ("law", "status", "formula", "fit")
STATUS_WORDS = {"fitted": "Fitted", "provisional": "Provisional", "refused": "Refused"}


def law_rows(laws: Laws) -> list[tuple[str, str, str, str]]:
    """The three laws and the joint surface under `LAW_HEADS`; of a refused one the reason."""
    rate, batch, curve, surface = (
        laws.learning_rate,
        laws.batch_size,
        laws.loss_compute,
        laws.surface,
    )
    shown = (
        ("learning rate", rate, hyperparameter_formula(rate), hyperparameter_quality(rate)),
        ("batch size", batch, hyperparameter_formula(batch), hyperparameter_quality(batch)),
        ("loss over compute", curve, loss_compute_formula(curve), loss_compute_quality(curve)),
        ("joint surface", surface, surface_formula(surface), surface_quality(surface)),
    )  # fmt: skip
    rows = []
    for name, law, formula, quality in shown:
        reason = "no reason given" if law.refusal is None else law.refusal.reason.value
        found = (formula, quality) if formula else (reason, "")
        rows.append((name, STATUS_WORDS[law.status], *found))
    return rows


def not_yet(reason: str, sizes: int | None = None) -> str:
    """A law that a running sweep does not have yet, and why."""
    return f"not yet: {why_not(reason, sizes)}"


def why_not(reason: str, sizes: int | None = None) -> str:
    """Why there is no law yet, from the reason of the refusal and the number of trained sizes."""
    if sizes == 0:
        return "no fit so far"
    if reason == "TooFewSizes" and sizes:
        return f"{'one size' if sizes == 1 else f'{sizes} sizes'} so far"
    return (
        "".join(f" {c.lower()}" if c.isupper() else c for c in reason).strip() or "no fit so far"
    )


def laws_text(laws: Laws) -> str:
    """The laws as a table, and why what is refused is."""
    return "\n".join([_aligned([LAW_HEADS, *law_rows(laws)]), *_refusal_lines(laws)])


def laws_html(laws: Laws) -> str:
    """The same for a notebook."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in _refusal_lines(laws))
    return _html(law_rows(laws), LAW_HEADS) + lines


def refusals(laws: Laws) -> tuple[tuple[str, str], ...]:
    """(reason, message) of everything that was refused, each once."""
    found = [*laws.refusals, *([laws.surface.refusal] if laws.surface.refusal else [])]
    return tuple(dict.fromkeys((item.reason.value, item.message) for item in found))


def _refusal_lines(laws: Laws) -> list[str]:
    return [f"Refused: {reason}: {message}" for reason, message in refusals(laws)]


def answer_rows(answer: Prediction) -> list[tuple[str, str]]:
    """What was asked for, with its interval, and how far it is from the data."""
    rate = interval(answer.learning_rate, learning_rate)
    beyond = number(answer.extrapolation.compute_factor, 2)
    return [
        ("learning rate", rate),
        ("batch size (sequences)", batch_size_text(answer, answer.batch_size)),
        ("total effective compute (FLOPs)", total_flops_text(answer)),
        ("extrapolation", f"{beyond} x the largest compute of the sweep"),
    ]  # fmt: skip


def batch_size_text(
    answer: Prediction,
    found: Interval,
    write: Callable[[float | None], str] = batch_size,
) -> str:
    """A batch size of the answer with its interval; the one that was given has none."""
    is_given = answer.batch_size_given and found.low == found.high
    return given(write(found.value)) if is_given else interval(found, write)


def total_flops_text(answer: Prediction) -> str:
    """C_total with its interval; it has none if it was given, in place of an initial loss."""
    found = answer.total_flops
    return interval(found, flops) if answer.equivalent_flops else given(flops(found.value))


def answer_text(answer: Prediction) -> str:
    """The answer as a table, and its warnings."""
    rows = [("", _level(answer)), *answer_rows(answer)]
    return "\n".join([_aligned(rows), *(f"Warning: {warning}" for warning in answer.warnings)])


def answer_html(answer: Prediction) -> str:
    """The same for a notebook."""
    warnings = "".join(f"<p>Warning: {escape(warning)}</p>" for warning in answer.warnings)
    return _html(answer_rows(answer), ("", _level(answer))) + warnings


def _level(answer: Prediction) -> str:
    return f"{answer.interval_level:.0%} interval"


def refused_text(refused: Refused) -> str:
    """Every reason, with what to change."""
    return "\n".join(f"Refused: {each.reason.value}: {each.message}" for each in refused.refusals)


def refused_html(refused: Refused) -> str:
    """The same for a notebook."""
    return "".join(f"<p>{escape(line)}</p>" for line in refused_text(refused).splitlines())


def _aligned(rows: Rows) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _html(rows: Rows, heads: Sequence[str]) -> str:
    """A table that takes its looks from the notebook."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
