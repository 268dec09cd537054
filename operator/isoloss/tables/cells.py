"""From cells to numbers, each cell by itself. An empty or unreadable cell is an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoloss.laws import Array
from isoloss.tables.cell_values import not_a_number, number_of, text_of
from isoloss.tables.formats import OPTIONAL, REQUIRED, Table

MAX_NAME = 256
NO_LOSS = (
    "leave out rows without an evaluation, and mark a run that diverged in the column diverged"
)
"""What to do about it, as logs of training have such rows."""
LABELS = ("optimizer", "seed")
"""Optional columns of text, with one value for each run."""


@dataclass(frozen=True)
class Numbers:
    """The table's numbers, each checked by itself, not yet against one another."""

    table: Table
    names: Sequence[str]
    values: Mapping[str, Array]
    diverged: NDArray[np.bool_]
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Columns of LABELS that the table has, unless all of one is empty."""
    warnings: list[str] = field(default_factory=list)


def numbers_of(table: Table) -> Numbers:
    """All columns in use as numbers, names and flags checked. Raises BadTable."""
    names = _texts(table, "run")
    diverged = _flags(table, "diverged")
    values = {
        column: _column(table, column, diverged)
        for column in (*REQUIRED[1:], "flops", "bytes")
        if column in table.columns
    }
    known = REQUIRED + OPTIONAL
    # A nameless index is what pandas writes unless told not to: nobody's column.
    ignored = [column for column in table.columns if column and column not in known]
    warnings = [f"{table.source}: columns ignored: {', '.join(ignored)}"] if ignored else []
    labels = {
        column: _texts(table, column)
        for column in LABELS
        if any(map(text_of, table.columns.get(column, ())))
    }
    if "optimizer" in labels:  # AdamW and adamw are one
        spelt: dict[str, str] = {}
        labels["optimizer"] = [
            spelt.setdefault(name.lower(), name) for name in labels["optimizer"]
        ]
    return _without_untrained(Numbers(table, names, values, diverged, labels, warnings))


def _without_untrained(numbers: Numbers) -> Numbers:
    """Leave out evaluations at 0 tokens: initial weights are no part of a law."""
    trained = numbers.values["tokens"] != 0
    if trained.all():
        return numbers
    kept = np.flatnonzero(trained).tolist()
    table = numbers.table
    if not kept:
        raise table.bad(
            0, "tokens", "no row has more than 0 tokens: tokens trained so far are expected"
        )
    note = f"{table.source}: evaluations at 0 tokens were left out: {len(trained) - len(kept)}"
    return Numbers(
        replace(table, columns={}, rows=[table.rows[i] for i in kept]),
        [numbers.names[i] for i in kept],
        {column: values[kept] for column, values in numbers.values.items()},
        numbers.diverged[kept],
        {column: [texts[i] for i in kept] for column, texts in numbers.labels.items()},
        [*numbers.warnings, note],
    )


def _texts(table: Table, column: str) -> list[str]:
    """A column of names."""
    names = [text_of(cell) for cell in table.columns[column]]
    for index, name in enumerate(names):
        if not name:
            raise table.bad(index, column, "no name: fill it in")
        if len(name) > MAX_NAME or not name.isprintable():
            message = f"a name has at most {MAX_NAME} characters, all of them printable"
            raise table.bad(index, column, message)
    return names


_FLAGS = {
    **dict.fromkeys(("true", "1", "1.0", "yes"), True),
    **dict.fromkeys(("false", "0", "0.0", "no"), False),
}
"""1.0 and 0.0 are what a data frame makes of flags if one of them was missing."""


def _flags(table: Table, column: str) -> NDArray[np.bool_]:
    """A column of flags. Without it, or if all of it is empty, none is set; a single empty cell is an error."""
    cells = [text_of(cell) for cell in table.columns.get(column, ())]
    if not any(cells):
        return np.zeros(len(table.rows), dtype=bool)
    for index, cell in enumerate(cells):
        if not cell:
            message = "no value: write true or false in every row, or in none"
            raise table.bad(index, column, message)
        if cell.lower() not in _FLAGS:
            raise table.bad(
                index, column, f"{cell[:40]!r} is neither true nor false: write true or false"
            )
    return np.array([_FLAGS[cell.lower()] for cell in cells])


def _column(table: Table, column: str, diverged: NDArray[np.bool_]) -> Array:
    """A column as floats. Only the loss may be absent, in a diverged run."""
    may_be_absent = diverged if column == "loss" else np.zeros_like(diverged)
    cells = enumerate(zip(table.columns[column], may_be_absent, strict=True))
    return np.array([_number(table, index, column, *each) for index, each in cells], dtype=float)


def _number(table: Table, index: int, column: str, cell: Any, may_be_absent: bool) -> float:
    hint = f": {NO_LOSS}" if column == "loss" else ""
    if not text_of(cell):
        if may_be_absent:
            return np.nan
        raise table.bad(index, column, f"no value{hint or ': fill it in'}")
    try:
        value = number_of(column, cell)
    except ValueError:
        is_word = bool(hint) and not any(map(str.isdigit, str(cell)))
        why = f"{str(cell)[:40]!r} is not a number{hint}" if is_word else not_a_number(cell)
        raise table.bad(index, column, why) from None
    if not np.isfinite(value) and not may_be_absent:
        raise table.bad(index, column, f"{value} is not finite{hint}")
    return value if np.isfinite(value) else np.nan
