"""Single cells of a table as people and libraries write them: empty ones, numbers, and NaN."""

import math
import re
from typing import Any

from isoloss.numbers import count_of, hint

COUNTS = ("params", "batch_size", "sequence_length", "tokens")
"""Columns of whole numbers, ..."""
WRITTEN_COUNT = re.compile(r"\d{1,3}([,'’\s]\d{3})+|\d+(\.\d+)?\s?[mbt]", re.IGNORECASE)
"""... which may be written so. 2k may be 2,048, and 1,475B may have a decimal comma."""


def is_blank(cell: Any) -> bool:
    """Whether there is no value: nothing, or nothing but spaces."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def text_of(cell: Any) -> str:
    """A cell as text without spaces around it."""
    if isinstance(cell, bytes):  # as some writers of Parquet store text
        return cell.decode(errors="backslashreplace").strip()
    return "" if cell is None else str(cell).strip()


def float_of(cell: Any) -> float:
    """A cell as a number. Raises ValueError for what is none, for flags, and for digits in groups."""
    if isinstance(cell, bool) or "_" in str(cell):
        raise ValueError
    try:
        return float(
            cell.replace("\u2212", "-") if isinstance(cell, str) else cell
        )  # the minus sign
    except (TypeError, OverflowError) as error:
        raise ValueError from error


def number_of(column: str, cell: Any) -> float:
    """A cell of a column of ours as a number; a count may be 124M, 1.5 B, 1,000,000 or 1 000 000. Raises ValueError."""
    try:
        return float_of(cell)
    except ValueError:
        text = text_of(cell)
        if column not in COUNTS or not WRITTEN_COUNT.fullmatch(text):
            raise
        return count_of(re.sub(r"['’\s]", "", text)) or 0.0


def not_a_number(cell: Any, where: str = "") -> str:
    """The message about a cell that should be one, with what to write."""
    return f"{str(cell)[:40]!r}{where} is not a number{hint(str(cell)) or ': write it in digits'}"


def is_number(text: str) -> bool:
    """Whether a text is a number, NaN and infinity included."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_written_nan(cell: Any) -> bool:
    """Whether NaN or infinity was written; a float that is NaN may be what a library makes of no value."""
    return isinstance(cell, str) and is_number(cell) and not math.isfinite(float(cell))


def are_close(first: Any, second: Any) -> bool:
    """Whether two cells have one value but for rounding."""
    if are_same(first, second):
        return True
    try:
        return math.isclose(float(first), float(second), rel_tol=1e-6)
    except (TypeError, ValueError):
        return False


def are_same(first: Any, second: Any) -> bool:
    """Whether two cells have one value, however it is written."""
    if str(first) == str(second):
        return True
    try:
        return float(first) == float(second)
    except (TypeError, ValueError):
        return False
