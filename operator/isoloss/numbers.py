"""Numbers as people write them: 55B tokens, 2.5T, 1,000M, 2,75."""

import math
import re

COUNT = re.compile(
    r"\+?((?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:e\+?\d{1,3})?)([kmbt]?)",
    re.IGNORECASE,
)
"""A comma only separates thousands: as a decimal point, 2,5B, it would be taken for 25B."""
SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
DECIMAL_COMMA = re.compile(r"([-+]?\d+),(\d+(?:e[-+]?\d+)?)", re.IGNORECASE)
THOUSANDS = 3
"""Digits after a comma that may separate thousands."""


def count_of(text: str) -> float | None:
    """The number that a text with a letter for thousands, millions, billions or trillions means; None: it is none."""
    match = COUNT.fullmatch(text.strip().replace("_", ""))
    return float(match[1].replace(",", "")) * SUFFIXES[match[2].lower()] if match else None


def hint(text: str, *, whole: bool = False) -> str:
    """How to write the number, or whole number, that was meant, as the end of a message; empty: nobody knows."""
    written = ""
    if (match := DECIMAL_COMMA.fullmatch(text.strip())) and len(match[2]) != THOUSANDS:
        written = f"{match[1]}.{match[2]}"
    elif text.endswith("%") and (value := count_of(text[:-1])) is not None:
        written = f"{value / 100.0:g}"
    # 8k tokens may be 8,192.
    elif (value := count_of(text) or math.inf) < math.inf and not text.lower().endswith("k"):
        written = f"{value:.0f}" if value.is_integer() else f"{value:g}"
    return f": write {written}" if written and (written.isdigit() or not whole) else ""


def to_significant_digits(value: float, digits: int) -> float:
    """The nearest number with so many significant digits."""
    return float(f"{value:.{digits - 1}e}")
