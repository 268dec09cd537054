"""Numbers with fewer digits: learning rates and batch sizes by which points are named."""

from __future__ import annotations


def to_significant_digits(value: float, digits: int) -> float:
    """The nearest number with so many significant digits."""
    return float(f"{value:.{digits - 1}e}")
