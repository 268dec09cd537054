"""Markdown of the generated pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Iterable[str]], *, numbers: bool = False) -> str:
    """A table; of `numbers` all columns but the first are aligned to the right."""
    rule = "---:" if numbers else "---"
    lines = [f"|{'|'.join(['---', *[rule] * (len(head) - 1)])}|"]
    lines += [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows
    ]
    return "\n".join([f"| {' | '.join(head)} |", *lines])
