"""The base class of all records, and the content hash that names what they determine.

Equal content has equal keys. A record with a wrong type is refused, because others can write to the
object store that results come from. An unknown field is refused if it could change what a task
means; in what a trainer reports it is passed over, because a newer trainer may report more.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, ErrorDetails

CONTRACT_VERSION = 1
"""Part of every content key: increment it when an unchanged task would give a different result."""
KEYED_SCHEMAS: Final = {
    "PointConfig": "32abba55f4e593f24572325fe3c6450d",
    "PrepareConfig": "420cb1d64d8ef5164b507a3863a8d3d4",
    "EvaluateConfig": "160cc27223f78fc9b1823271ee3c5801",
}
"""Hash of the schema of each record with a key, by its name. It may change without CONTRACT_VERSION only by a field with
a default under which everything is as it was before."""


MAX_INTEGER = 2**63 - 1
_COLLECTIONS = ("list", "tuple", "set", "frozenset", "dict")
_OWN_WORDS = {"missing": "missing", "extra_forbidden": "unknown field"}
_NOT_SCHEMAS = ("config", "default", "metadata", "serialization")


def end_early(
    schema: CoreSchema, resolved: Callable[[CoreSchema], CoreSchema] = lambda schema: schema
) -> CoreSchema:
    """Change a schema of pydantic-core so that no collection is looked at beyond its first bad item.

    JSON has integers of 4,300 digits, which no float holds: they are refused, too. `resolved`: the
    schema behind a reference.
    """
    seen: set[int] = set()

    def change(part: Any) -> None:
        if isinstance(part, list | tuple):
            for each in part:
                change(each)
        if not isinstance(part, dict) or id(part) in seen:
            return
        seen.add(id(part))
        kind = part.get("type")
        if kind == "definition-ref":
            change(resolved(cast("CoreSchema", part)))
        elif kind == "int":
            part.setdefault("ge", -MAX_INTEGER)
            part.setdefault("le", MAX_INTEGER)
        elif kind in _COLLECTIONS:
            part["fail_fast"] = True
        for name, each in part.items():
            if name not in _NOT_SCHEMAS:
                change(each)

    change(schema)
    return schema


def in_words(detail: ErrorDetails) -> str:
    """What is wrong with a value, without words that only pydantic uses."""
    problem = _OWN_WORDS.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    problem = problem.removeprefix("Input ").replace("should", "must", 1)
    return f"{problem[:1].lower()}{problem[1:]}".partition(", unable to parse")[0]


class Record(BaseModel):
    """Base of every record: frozen, no unknown fields, no coercion, finite numbers where declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="null")

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return end_early(handler(source), handler.resolve_ref_schema)


class Report(Record):
    """Base of what a trainer writes for others to read: unknown fields are passed over.

    So the images of trainer and operator can be upgraded one after the other, in either order. A
    change that a reader must not miss raises `contract_version`.
    """

    model_config = ConfigDict(extra="ignore")


def content_key(value: Any) -> str:
    """The first 32 hexadecimal digits of the SHA-256 of `value` as JSON with sorted keys and no spaces: equal for equal
    values.

    Raises ValueError for NaN and infinities, which have no JSON form.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def record_key(record: Record) -> str:
    """The content key of a record that determines a result.

    Fields at their defaults are left out, so that another optional field changes no key. What such a default means must
    never change; the version of the contract is part of every key.
    """
    stated = record.model_dump(mode="json", exclude_defaults=True)
    return content_key({**stated, "contract_version": CONTRACT_VERSION})


Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Uri = Annotated[str, Field(min_length=1, max_length=1024)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32,64}$")]
Tokens = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveFinite = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Loss = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A cross-entropy in nats per token."""
