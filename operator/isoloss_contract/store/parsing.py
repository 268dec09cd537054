"""Strict parsing of what the store holds: it is untrusted, and read in the process that holds the lease.

pydantic parses and collects errors with the interpreter's lock held, and copies for each error what was
wrong: half a MiB of `{"domains":[{},{},...` took seconds, in which the lease was lost. Three bounds keep
every call below half a second: the bytes and values of limits.py, and records.base.end_early.
"""

import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator, from_json

from isoloss_contract.json_text import RepeatedKey, read_json
from isoloss_contract.records.base import CONTRACT_VERSION, end_early, in_words
from isoloss_contract.store import limits
from isoloss_contract.store.errors import BadRecord, NewerRecord
from isoloss_contract.store.limits import Limit

Model = TypeVar("Model")
FLOAT: Final = "__float__"
"""The one key of an object that transformers writes for a number that JSON has no word for."""
CONTRACT: Final = ("contract_version", CONTRACT_VERSION)
"""The field of a record of the contract that has its version, and the newest that is known here."""


def parse_record(
    content: bytes,
    model: type[Model],
    source: str,
    *,
    limit: Limit = limits.LARGEST,
    newest: tuple[str, int] = CONTRACT,
) -> Model:
    """Parse JSON strictly into `model`. Raises BadRecord naming `source` and the first bad field, and NewerRecord if
    the record says that it has a newer format, whatever else is in it.

    `newest`: the field with the version of the format, and the newest one that is known here.
    """
    limit.check(content, source)
    try:
        return cast("Model", _validator(cast("Any", model)).validate_json(content))
    except ValidationError as error:
        _refuse_newer(content, source, *newest)
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "(document)"
        raise BadRecord(f"{source}: {field[:200]}: {in_words(first)}"[:600]) from error


@cache
def _validator(model: Any) -> SchemaValidator:
    return SchemaValidator(end_early(TypeAdapter(model).core_schema))


def _refuse_newer(content: bytes, source: str, field: str, known: int) -> None:
    try:
        version = _json_object(content, source, from_json).get(field)
    except BadRecord:
        return
    if isinstance(version, int) and version > known:
        raise NewerRecord(
            f"{source}: written by a newer isoloss ({field.replace('_', ' ')} {version}; this one knows up to {known}): "
            "upgrade what reads it"
        )


def parse_json_object(
    content: bytes, source: str, limit: Limit = limits.LARGEST
) -> dict[str, Any]:
    """Parse one JSON object that others wrote. Raises BadRecord naming `source`.

    Infinity and NaN, which JSON has no words for and Python writes all the same, become what transformers writes for them:
    {"__float__": "Infinity"}.
    """
    limit.check(content, source)
    found = _json_object(content, source, read_json)
    return {name: _in_json(each) for name, each in found.items()}


def _in_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: json.dumps(value)}
    if isinstance(value, dict):
        return {name: _in_json(each) for name, each in value.items()}
    return [_in_json(each) for each in value] if isinstance(value, list) else value


def _json_object(content: bytes, source: str, read: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        value = read(content)
    except RepeatedKey as error:
        raise BadRecord(f"{source}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{source}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRecord(f"{source}: not a JSON object")
    return value


def parse_record_lines(content: bytes, model: type[Model], source: str) -> list[Model]:
    """Parse JSON lines strictly. Raises BadRecord naming `source`, line and field.

    However many they are, others run in between.
    """
    lines = content.split(b"\n")
    if lines and lines[-1] == b"":
        lines.pop()
    return [
        parse_record(line, model, f"{source}:{number}", limit=limits.LINE)
        for number, line in enumerate(lines, 1)
    ]
