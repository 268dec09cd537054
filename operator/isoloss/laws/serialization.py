"""Laws as JSON and back, strictly: what comes back from a store is untrusted."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from isoloss.laws.model import Array
from isoloss.laws.results import Laws

FORMAT = "isoloss.dev/laws"
VERSION = 1


class InvalidLawsError(ValueError):
    """Text that is not a laws document of this version; the message names the field."""


def laws_to_json(laws: Laws) -> dict[str, Any]:
    """A JSON document of plain lists, dicts, strings and finite numbers (NaN becomes null)."""
    return {"format": FORMAT, "version": VERSION, "laws": _encode(laws)}


def laws_from_json(document: object) -> Laws:
    """The laws of a document. Raises InvalidLawsError for anything else, unknown fields included."""
    if not isinstance(document, dict):
        raise InvalidLawsError("not a JSON object")
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise InvalidLawsError(
            f"not {FORMAT} version {VERSION}: format {document.get('format')!r}, "
            f"version {document.get('version')!r}"
        )
    if set(document) != {"format", "version", "laws"}:
        raise InvalidLawsError("fields other than format, version and laws")
    laws = _decode(document["laws"], Laws, "laws")
    assert isinstance(laws, Laws)
    return laws


def _encode(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return _encode(value.tolist())
    if isinstance(value, dict):
        return {str(k): _encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(v) for v in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value


def _decode(value: Any, kind: Any, path: str) -> Any:
    if kind == Array:
        return _array(value, path)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _union(value, get_args(kind), path)
    if origin is Literal:
        return _expect(value in get_args(kind), value, f"one of {get_args(kind)}", path)
    if origin is tuple:
        _expect(isinstance(value, list), value, "a list", path)
        return tuple(_decode(v, get_args(kind)[0], f"{path}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        _expect(isinstance(value, dict), value, "an object", path)
        return {k: _decode(v, get_args(kind)[1], f"{path}.{k}") for k, v in value.items()}
    if is_dataclass(kind):
        return _dataclass(value, kind, path)
    return _scalar(value, kind, path)


def _union(value: Any, kinds: tuple[Any, ...], path: str) -> Any:
    if value is None:
        return _expect(NoneType in kinds, value, "a value", path)
    kinds = tuple(k for k in kinds if k is not NoneType)
    if len(kinds) == 1:
        return _decode(value, kinds[0], path)
    is_text = isinstance(value, str)
    return _decode(value, str if is_text and str in kinds else float, path)


def _dataclass(value: Any, kind: Any, path: str) -> Any:
    _expect(isinstance(value, dict), value, "an object", path)
    hints = get_type_hints(kind)
    names = {f.name for f in fields(kind)}
    if set(value) != names:
        odd = sorted(set(value) ^ names)
        raise InvalidLawsError(f"{path}: unknown or missing fields {', '.join(map(str, odd))}")
    return kind(**{n: _decode(value[n], hints[n], f"{path}.{n}") for n in names})


def _array(value: Any, path: str) -> Array:
    try:
        array = np.array(value, dtype=float)
    except (TypeError, ValueError):
        raise InvalidLawsError(f"{path}: not an array of numbers") from None
    _expect(isinstance(value, list) and array.size <= 200_000, "…", "a bounded array", path)
    return array


def _scalar(value: Any, kind: Any, path: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise InvalidLawsError(f"{path}: {value!r} is not a {kind.__name__}") from None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float:
        _expect(is_number and np.isfinite(value), value, "a finite number", path)
        return float(value)
    matches = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return _expect(matches, value, kind.__name__, path)


def _expect(condition: bool, value: Any, wanted: str, path: str) -> Any:
    if not condition:
        raise InvalidLawsError(f"{path}: {value!r} is not {wanted}")
    return value
