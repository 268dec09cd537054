"""Single cells of a table as people and libraries write them: empty ones, numbers, and NaN."""

import math
from typing import Any


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
        return float(cell)
    except (TypeError, OverflowError) as error:
        raise ValueError from error


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
