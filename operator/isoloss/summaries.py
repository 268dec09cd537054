"""Tables of laws and answers as text, and as HTML for notebooks."""

from collections.abc import Sequence
from html import escape

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows) -> str:
    """A table as text, without trailing spaces."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def as_html(rows: Rows, heads: Sequence[str]) -> str:
    """A table that takes its looks from the notebook."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(lines: Sequence[str]) -> str:
    """A paragraph of HTML for each line."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def not_yet(reason: str, sizes: int | None = None) -> str:
    """A law that a running sweep does not have yet, and why."""
    return f"not yet: {why_not(reason, sizes)}"


def why_not(reason: str, sizes: int | None = None) -> str:
    """Why there is no law yet, from the reason of the refusal and the number of trained sizes."""
    if sizes == 0:
        return "no fit so far"
    if reason == "TooFewSizes" and sizes:
        return f"{'one size' if sizes == 1 else f'{sizes} sizes'} so far"
    return in_words(reason) or "no fit so far"


def in_words(reason: str) -> str:
    """OptimumOnBatchSizeEdge -> optimum on batch size edge."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in reason).strip()
