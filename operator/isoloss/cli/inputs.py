"""Checks of option values."""

from __future__ import annotations

import math

from isoloss.errors import BadInput


def positive(option: str, value: float | None) -> None:
    """Raise BadInput unless the option is absent or a positive, finite number."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise BadInput(f"{option}: {value:g} is not a positive, finite number")
