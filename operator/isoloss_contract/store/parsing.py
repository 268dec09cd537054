"""Strict parsing of what the store holds: it is untrusted."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from isoloss_contract.records.base import CONTRACT_VERSION
from isoloss_contract.store.errors import BadRecord, NewerRecord

Model = TypeVar("Model", bound=BaseModel)


def parse_record(
    content: bytes, model: type[Model], source: str, *, extra: Literal["ignore"] | None = None
) -> Model:
    """Parse JSON strictly into `model`. Raises BadRecord naming `source` and the first bad field.

    `extra`: let unknown fields pass, where a newer version may have written some. Raises NewerRecord
    where the record says that it follows a newer contract, whatever else is in it.
    """
    try:
        return model.model_validate_json(content, extra=extra)
    except ValidationError as error:
        _refuse_newer(content, source)
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "(document)"
        raise BadRecord(f"{source}: {field}: {first['msg']}") from error


def _refuse_newer(content: bytes, source: str) -> None:
    try:
        version = parse_json_object(content, source).get("contract_version")
    except BadRecord:
        return
    if isinstance(version, int) and version > CONTRACT_VERSION:
        raise NewerRecord(
            f"{source}: written by a newer isoloss (contract version {version}; this one knows up "
            f"to {CONTRACT_VERSION}): upgrade what reads it"
        )


def parse_json_object(content: bytes, source: str) -> dict[str, Any]:
    """Parse one JSON object without NaN or Infinity. Raises BadRecord naming `source`."""
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise BadRecord(f"{source}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRecord(f"{source}: not a JSON object")
    return value


def parse_record_lines(content: bytes, model: type[Model], source: str) -> list[Model]:
    """Parse JSON lines strictly. Raises BadRecord naming `source`, line and field."""
    lines = content.split(b"\n")
    if lines and lines[-1] == b"":
        lines.pop()
    return [
        parse_record(line, model, f"{source}:{number}") for number, line in enumerate(lines, 1)
    ]
