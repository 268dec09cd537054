"""The base of the API types, their rules and the scalar fields that several of them share.

A rule is written in CEL for the API server and in Python for `isoloss plan` and the operator, with one message:
both refuse the same manifests.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeVar

import pydantic
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError, core_schema

from isoloss_operator.api.crd_schema import QUOTED, RULES


@dataclass(frozen=True)
class Rule:
    """A validation rule in CEL and in Python. Annotates a field, or is an item of `ApiType.rules`.

    A rule about a change (`oldSelf`) has no Python side.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] = lambda _: True

    def check(self, value: Any) -> Any:
        """Return the value or raise the message."""
        if not self.holds(value):
            # Messages may hold braces, which pydantic would take for a template.
            raise PydanticCustomError("rule", "{message}", {"message": self.message})
        return value

    @property
    def schema(self) -> dict[str, str]:
        """The entry of x-kubernetes-validations."""
        return {"rule": self.cel, "message": self.message}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Check after the field's own validation."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, core: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Append to the field's rules."""
        schema = dict(handler(core))
        return schema | {RULES: [*schema.get(RULES, []), self.schema]}


class ApiType(pydantic.BaseModel):
    """Base of every API type: frozen, camelCase on the wire, field docstrings are descriptions.

    Unknown fields are refused: a misspelt field must not silently mean its default.
    """

    model_config = pydantic.ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        extra="forbid",
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules over several fields."""

    @pydantic.model_validator(mode="after")
    def _obeys_rules(self) -> Self:
        for rule in self.rules:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Add the type's rules."""
        schema = handler.resolve_ref_schema(handler(core))
        if cls.rules:
            schema[RULES] = [rule.schema for rule in cls.rules]
        return schema


def _refuse_number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticCustomError(
            "quoted", 'write the number in quotes: "{number}"', {"number": str(value)}
        )
    return value


DECIMAL_PATTERN = r"^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?$"


def is_decimal_cel(variable: str) -> str:
    """Whether a text is a decimal number as the API writes it, in CEL."""
    return f"{variable}.matches(r'{DECIMAL_PATTERN}')"


COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
"""Alike in CEL and in Python."""


def decimal(words: str, *bounds: tuple[str, float]) -> Rule:
    """The rule of a decimal field, with each of its bounds as a comparison and a number."""
    in_cel = (f"double(self) {sign} {number:.1f}" for sign, number in bounds)
    return Rule(
        " && ".join([is_decimal_cel("self"), *in_cel]),
        f"must be {words}, in quotes",
        lambda text: (
            re.fullmatch(DECIMAL_PATTERN, text) is not None
            and all(COMPARISONS[sign](float(text), number) for sign, number in bounds)
        ),
    )


DecimalText = Annotated[
    str,
    pydantic.BeforeValidator(_refuse_number),
    pydantic.Field(
        pattern=DECIMAL_PATTERN,
        min_length=1,
        max_length=32,
        json_schema_extra={QUOTED: '"0.95" or "2e-4"'},
    ),
]
"""Text in the form of a decimal number; each use adds its bounds."""
Decimal = Annotated[DecimalText, decimal('a positive number such as "2e-4"', (">", 0))]
LearningRate = Annotated[
    DecimalText,
    decimal('a learning rate above 0 and at most 10 such as "2e-4"', (">", 0), ("<=", 10)),
]
Fraction = Annotated[DecimalText, decimal('a number from 0 to below 1 such as "0.95"', ("<", 1))]
NonNegativeDecimal = Annotated[
    DecimalText, decimal('a number of 0 or more such as "0.1"', (">=", 0))
]
LossWeight = Annotated[DecimalText, decimal('a number from 0 to 1 such as "1e-4"', ("<=", 1))]
PlacementFactor = Annotated[
    DecimalText, decimal('a number from 1.5 to 10, such as "2"', (">=", 1.5), ("<=", 10))
]
NeighbourFactor = Annotated[
    DecimalText, decimal('a number above 1, up to 10, such as "2"', (">", 1), ("<=", 10))
]
AtLeastOne = Annotated[DecimalText, decimal('a number of 1 or more such as "1000"', (">=", 1))]
Loss = Annotated[
    DecimalText,
    decimal(
        'a loss in nats per token, above 0 and below 100, such as "2.08"', (">", 0), ("<", 100)
    ),
]
IrreducibleLoss = Annotated[
    DecimalText,
    decimal('a loss in nats per token, from 0 to below 100, such as "1.69"', ("<", 100)),
]
Nodes = Annotated[int, pydantic.Field(ge=1, le=64)]

LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
DnsLabel = Annotated[str, pydantic.Field(pattern=LABEL_PATTERN, min_length=1, max_length=63)]
ObjectName = Annotated[str, pydantic.Field(pattern=NAME_PATTERN, min_length=1, max_length=253)]

# Control characters, and what a URI parser could read in a second way.
_REFUSED_IN_PATHS = r"\x00-\x1f\x7f%#\\"
_URI_PATTERN = (
    rf"^((s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]*(/[^{_REFUSED_IN_PATHS}]*)?"
    rf"|file:///[^/{_REFUSED_IN_PATHS}][^{_REFUSED_IN_PATHS}]*)$"
)
StoreUri = Annotated[
    str,
    pydantic.Field(min_length=6, max_length=1024),
    Rule(
        f"self.matches(r'{_URI_PATTERN}')",
        "must be s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH,"
        " without % # \\ and control characters",
        lambda uri: re.fullmatch(_URI_PATTERN, uri) is not None,
    ),
    Rule(
        r"!self.matches(r'/\.{1,2}(/|$)|[^:/]//')",
        "must not contain empty, '.' or '..' path segments",
        lambda uri: re.search(r"/\.{1,2}(/|$)|[^:/]//", uri) is None,
    ),
]
"""Something in an object store, or files that match a glob pattern."""
MAX_FOLDER_URI_BYTES = 512
"""Keys of objects have at most 1,024 bytes, of which what is put below a folder takes up to 500."""
FolderUri = Annotated[
    StoreUri,
    Rule(
        f"bytes(self).size() <= {MAX_FOLDER_URI_BYTES}",
        f"must have at most {MAX_FOLDER_URI_BYTES} bytes in UTF-8: objects are put below it, whose"
        " keys have at most 1,024",
        lambda uri: len(uri.encode()) <= MAX_FOLDER_URI_BYTES,
    ),
    Rule(
        "!self.matches(r'[*?\\[\\]]')",
        "must name one folder, not a pattern",
        lambda uri: re.search(r"[*?\[\]]", uri) is None,
    ),
    Rule(
        "!self.matches(r'[.](safetensors|json|bin|pt|pth|gguf)/*$')",
        "must name the folder, not a file in it",
        lambda uri: re.search(r"[.](safetensors|json|bin|pt|pth|gguf)/*$", uri) is None,
    ),
]

PositiveTokens = Annotated[
    int, pydantic.Field(ge=1, le=2**53, json_schema_extra={"format": "int64"})
]
NonNegativeTokens = Annotated[
    int, pydantic.Field(ge=0, le=2**53, json_schema_extra={"format": "int64"})
]

IDENTITY = Rule(
    "self == oldSelf",
    "is part of the sweep's identity and cannot be changed: create another ScalingSweep"
    " (points that are equal are shared through the store)",
)
"""For what determines results: an edit would silently discard running Jobs and start over."""

POD_TEMPLATE_SCHEMA: dict[str, Any] = {
    "properties": {
        "metadata": {
            "description": "Labels and annotations of the pods.",
            "type": "object",
            "properties": {
                key: {
                    "description": f"{key.capitalize()} of the pods.",
                    "type": "object",
                    "maxProperties": 64,
                    "additionalProperties": {"type": "string", "maxLength": 65536},
                }
                for key in ("labels", "annotations")
            },
        },
        "spec": {
            "description": "Partial core/v1 PodSpec. The container is named trainer.",
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        },
    }
}


def _only_known_parts(template: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(template.keys() - {"metadata", "spec"})
    if unknown:
        raise PydanticCustomError(
            "part", "has metadata and spec only, not {names}", {"names": ", ".join(unknown)}
        )
    return template


PodTemplate = Annotated[
    dict[str, Any],
    pydantic.AfterValidator(_only_known_parts),
    pydantic.Field(json_schema_extra=POD_TEMPLATE_SCHEMA),
]
"""A partial core/v1 PodTemplateSpec. Its full schema would take the CRD over its size limit: the
operator finds mistakes in it when it creates the Job."""


class Named(Protocol):
    """An item of a list by name."""

    @property
    def name(self) -> str:
        """Unique within the list."""
        ...


Items = TypeVar("Items", bound=Sequence[Named])

BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""The API server refuses equal names, and server-side apply merges entries by name."""


def names_are_unique(items: Items) -> Items:
    """The items. Raises PydanticCustomError if two have one name."""
    names = [item.name for item in items]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PydanticCustomError(
            "duplicate", "names must be unique: {names}", {"names": ", ".join(twice)}
        )
    return items
