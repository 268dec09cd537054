"""Laws as JSON and back, without loss: what the operator keeps as laws.json and predicts from later.

The types in results.py are the schema: every field must be there, none may be unknown, and each
must have its declared type, because the file comes from an object store that others can write to.
"""

from __future__ import annotations

import functools
import math
import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from isoloss.laws.results import Laws

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MAX_ENTRIES = 2_000_000
"""Of one array; a fit keeps a few hundred draws."""


class BadLaws(ValueError):
    """A document is not that of any laws; the message names the field."""


def laws_to_document(laws: Laws) -> dict[str, Any]:
    """Plain JSON values; not-a-number and infinities become the strings of NON_FINITE."""
    document: dict[str, Any] = _encode(laws)
    return document


def laws_from_document(document: Any) -> Laws:
    """The laws of a document. Raises BadLaws naming the first field that is not what it should be."""
    laws: Laws = _decode(Laws, document, "laws")
    return laws


def _encode(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "data": [_encode(float(x)) for x in value.ravel()]}
    if isinstance(value, np.generic):
        return _encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {name: _encode(item) for name, item in value.items()}
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, value: Any, path: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(kind, value, path)
    if origin is Literal:
        return _checked(value, value in get_args(kind), path, f"one of {get_args(kind)}")
    if origin is tuple:
        return _decode_tuple(kind, value, path)
    if origin is dict:
        return _decode_dict(kind, value, path)
    if origin is np.ndarray:
        return _decode_array(value, path)
    if is_dataclass(kind):
        return _decode_dataclass(kind, value, path)
    return _decode_scalar(kind, value, path)


def _decode_union(kind: Any, value: Any, path: str) -> Any:
    options = get_args(kind)
    if value is None:
        return _checked(None, type(None) in options, path, "a value")
    failures = []
    for option in (option for option in options if option is not type(None)):
        try:
            return _decode(option, value, path)
        except BadLaws as error:
            failures.append(error)
    raise failures[0]


def _decode_tuple(kind: Any, value: Any, path: str) -> tuple[Any, ...]:
    items = _checked(value, isinstance(value, list), path, "a list")
    parts = get_args(kind)
    if len(parts) == 2 and parts[1] is Ellipsis:
        return tuple(_decode(parts[0], item, f"{path}[{i}]") for i, item in enumerate(items))
    _checked(items, len(items) == len(parts), path, f"{len(parts)} entries")
    return tuple(
        _decode(part, item, f"{path}[{i}]")
        for i, (part, item) in enumerate(zip(parts, items, strict=True))
    )


def _decode_dict(kind: Any, value: Any, path: str) -> dict[Any, Any]:
    key_kind, item_kind = get_args(kind)
    items = _checked(value, isinstance(value, dict), path, "an object")
    return {
        _decode(key_kind, key, path): _decode(item_kind, item, f"{path}.{key}")
        for key, item in items.items()
    }


def _decode_array(value: Any, path: str) -> Any:
    good = isinstance(value, dict) and set(value) == {"shape", "data"}
    _checked(value, good, path, "an array with shape and data")
    shape, data = value["shape"], value["data"]
    sizes = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    _checked(shape, sizes and math.prod(shape) <= MAX_ENTRIES, f"{path}.shape", "a shape")
    fits = isinstance(data, list) and len(data) == math.prod(shape)
    _checked(data, fits, f"{path}.data", f"{math.prod(shape)} numbers")
    numbers = [_decode_scalar(float, x, f"{path}.data[{i}]") for i, x in enumerate(data)]
    return np.array(numbers, dtype=np.float64).reshape(shape)


def _decode_dataclass(kind: Any, value: Any, path: str) -> Any:
    items = _checked(value, isinstance(value, dict), path, "an object")
    names = [field.name for field in fields(kind)]
    for name in items:
        _checked(name, name in names, f"{path}.{name}", "a known field")
    for name in names:
        _checked(name, name in items, f"{path}.{name}", "there")
    hints = _hints(kind)
    return kind(**{name: _decode(hints[name], items[name], f"{path}.{name}") for name in names})


def _decode_scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float:
        if isinstance(value, str):
            _checked(value, value in NON_FINITE, path, "a number")
            return NON_FINITE[value]
        _checked(value, type(value) in (int, float), path, "a number")
        return float(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        known = [member.value for member in kind]
        return kind(_checked(value, value in known, path, f"one of {', '.join(map(str, known))}"))
    return _checked(value, type(value) is kind, path, f"a {kind.__name__}")


def _checked(value: Any, is_good: bool, path: str, wanted: str) -> Any:
    if not is_good:
        raise BadLaws(f"{path}: must be {wanted}")
    return value
