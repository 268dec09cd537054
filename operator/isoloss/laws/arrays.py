"""Numbers and arrays, and how laws.json holds them."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, PlainSerializer, PlainValidator

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MAX_ENTRIES = 2_000_000
"""Entries of one stored array at most; a fit keeps a few hundred draws."""
MAX_DIMENSIONS = 4


def _read_number(value: Any) -> Any:
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def _write_number(value: float) -> float | str:
    """JSON has no name for not-a-number and the infinities."""
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _read_array(value: Any) -> NDArray[np.float64]:
    if isinstance(value, np.ndarray):
        return value
    if not (isinstance(value, dict) and set(value) == {"shape", "data"}):
        raise ValueError("must be an array with shape and data")
    shape, data = value["shape"], value["data"]
    if not (
        isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS and all(map(_is_count, shape))
    ):
        raise ValueError(f"shape must be a list of at most {MAX_DIMENSIONS} counts")
    if not isinstance(data, list) or len(data) != math.prod(shape) or len(data) > MAX_ENTRIES:
        raise ValueError("data must have as many numbers as shape says")
    numbers = [_read_number(x) for x in data]
    if not all(type(x) in (int, float) for x in numbers):
        raise ValueError("data must be numbers")
    try:
        return np.array(numbers, dtype=np.float64).reshape(shape)
    except OverflowError as error:
        raise ValueError("data must be numbers that a float holds") from error


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ENTRIES


def _write_array(value: NDArray[np.float64]) -> dict[str, Any]:
    data = [_write_number(float(x)) for x in value.ravel()]
    return {"shape": list(value.shape), "data": data}


Real = Annotated[
    float, BeforeValidator(_read_number), PlainSerializer(_write_number, when_used="json")
]
"""A number that laws.json can hold even if it is not finite."""
Array = Annotated[
    NDArray[np.float64],
    PlainValidator(_read_array),
    PlainSerializer(_write_array, when_used="json"),
]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]
