"""A well-formed run table as text, to be broken by tests one cell at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

HEADER = ("run", "params", "batch_size", "sequence_length", "learning_rate", "tokens", "loss")

Cells = list[list[str]]


def good_rows() -> Cells:
    """Two runs of three evaluations each; lines 2 to 7 of the file."""
    return [
        [f"r{batch}", "100000000", str(batch), "2048", "0.0003", str(tokens), f"{loss:.4f}"]
        for batch in (64, 128)
        for tokens, loss in ((10**9, 3.4 + batch / 1e4), (2 * 10**9, 3.2), (4 * 10**9, 3.0))
    ]


def as_csv(rows: Sequence[Sequence[str]], header: Sequence[str] = HEADER) -> bytes:
    """The rows under their header, lines ended by a newline."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().encode()
