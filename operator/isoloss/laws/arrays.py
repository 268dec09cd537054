"""Numbers and arrays, and how laws.json holds them."""

import math
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MAX_ENTRIES = 2_000_000
"""Entries of one stored array at most; a fit keeps a few hundred draws."""
LARGEST, LARGEST_QUANTITY = 1e6, 1e60
"""Far beyond those of any sweep; powers and products of these do not overflow."""
LARGEST_LOG = math.log(LARGEST_QUANTITY)
"""Of an answer, or of the end of its interval: what is known to no factor ends there, and stays a number that JSON holds."""
ROUNDING = 1e-9
"""Share by which floating point may move what is exact: smaller differences, of ln L and ln B too, are none."""


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
    if not (isinstance(shape, list) and all(map(_is_count, shape))):
        raise ValueError("shape must be a list of counts")
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


def _read_coefficient(value: Any) -> Any:
    if isinstance(value, dict):
        return _vector(None, _read_array(value))
    if type(value) not in (int, float) or not abs(value) <= LARGEST:
        raise ValueError("must be a finite number, or an array with shape and data")
    return float(value)


def _write_coefficient(value: Any) -> Any:
    return _write_array(value) if isinstance(value, np.ndarray) else _write_number(value)


def _vector(size: int | None, value: NDArray[np.float64]) -> NDArray[np.float64]:
    """`size` finite numbers; None: any number of them but 0."""
    if value.ndim != 1 or not value.size or size not in (None, value.size):
        raise ValueError(f"must be a vector{'' if size is None else f' of {size}'}")
    if not (abs(value) <= LARGEST).all():
        raise ValueError("must be finite numbers")
    return value


def _positives(value: NDArray[np.float64]) -> NDArray[np.float64]:
    if not (_vector(None, value) > 0).all():
        raise ValueError("must be positive")
    return value


def _deviations(value: NDArray[np.float64]) -> NDArray[np.float64]:
    if (_vector(None, value) < 0).any():
        raise ValueError("must not be negative")
    return value


def _covariance(size: int, value: NDArray[np.float64]) -> NDArray[np.float64]:
    if value.shape != (size, size) or not (abs(value) <= LARGEST).all():
        raise ValueError(f"must be {size} x {size} finite numbers")
    eigenvalues = np.linalg.eigvalsh(value)
    if not np.allclose(value, value.T) or eigenvalues[0] < -ROUNDING * abs(eigenvalues[-1]):
        raise ValueError("must be symmetric, without negative eigenvalues")
    return value


def _moments(value: NDArray[np.float64]) -> NDArray[np.float64]:
    if value.ndim != 2:
        raise ValueError("must be a matrix")
    return _covariance(len(value), value)


Real = Annotated[
    float, BeforeValidator(_read_number), PlainSerializer(_write_number, when_used="json")
]
"""A number that laws.json can hold even if it is not finite."""
Array = Annotated[
    NDArray[np.float64],
    PlainValidator(_read_array),
    PlainSerializer(_write_array, when_used="json"),
]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
"""A logarithm, or a coefficient of one."""
NotNegative = Annotated[Finite, Field(ge=0)]
Positive = Annotated[float, Field(ge=1 / LARGEST_QUANTITY, le=LARGEST_QUANTITY)]
"""Tokens, FLOPs, a loss, a learning rate, …"""
Count = Annotated[int, Field(ge=1)]
Coefficient = Annotated[
    float | NDArray[np.float64],
    PlainValidator(_read_coefficient),
    PlainSerializer(_write_coefficient, when_used="json"),
]
"""A finite number, or (draws,) of them."""
Vector2 = Annotated[Array, AfterValidator(partial(_vector, 2))]
Vector6 = Annotated[Array, AfterValidator(partial(_vector, 6))]
Positives = Annotated[Array, AfterValidator(_positives)]
Deviations = Annotated[Array, AfterValidator(_deviations)]
"""(k,) standard deviations."""
Covariance2 = Annotated[Array, AfterValidator(partial(_covariance, 2))]
Moments = Annotated[Array, AfterValidator(_moments)]
"""(n, n), symmetric and without negative eigenvalues."""
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]
