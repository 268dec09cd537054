"""Well-formed run tables: as text, to be broken by tests one cell at a time, and of probes."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from isoloss.tables import BadTable, parse_table

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


def refused(content: bytes, match: str, source: str = "runs.csv") -> tuple[int | None, str | None]:
    """Row and column for which a table is refused, with a message that matches; fails where it is not."""
    with pytest.raises(BadTable, match=match) as caught:
        parse_table(content, source)
    return caught.value.row, caught.value.column


def write_probes(
    path: Path,
    places: Sequence[Mapping[str, float]],
    best: float,
    tokens: float = 1.2e10,
    params: float = 3e8,
    length: int = 2048,
) -> Path:
    """Losses on a bowl whose best learning rate is `best` times that of the first place."""
    middle = places[0]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for i, place in enumerate(places):
            x = math.log(place["learning_rate"] / middle["learning_rate"] / best)
            y = math.log(place["batch_size"] / middle["batch_size"])
            loss = 2.6 + 0.05 * x * x + 0.02 * y * y
            numbers = (params, place["batch_size"], length, place["learning_rate"], tokens, loss)
            writer.writerow([f"probe{i}", *numbers])
    return path
