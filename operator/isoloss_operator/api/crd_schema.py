"""Converts pydantic types to the structural OpenAPI schemas of a CRD.

Pydantic writes JSON Schema, of which Kubernetes accepts a part: no `$ref`, no `null`, no numeric exclusive
bounds, one type per node. A type without a structural form is refused when the CRDs are generated.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

QUOTED = "x-isoloss-quoted"
"""Marks a string that looks like a number; its value is an example, e.g. "2e-4"."""

RULES = "x-kubernetes-validations"

_COPIED = frozenset(
    {
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maximum",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minimum",
        "minItems",
        "minLength",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        RULES,
    }
)


class UnstructuralError(ValueError):
    """A type that has no structural schema."""


def structural_schema(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The structural schema of `model`, with field names as on the wire.

    `defaults=False` leaves all defaults out, for a status: the API server must not fill in what the
    operator has not reported. Raises UnstructuralError with the path of what has no
    structural form.
    """
    document = model.model_json_schema(by_alias=True, mode="validation")
    definitions = document.pop("$defs", {})
    return _Walk(definitions, defaults=defaults).node(document, model.__name__, ())


class _Walk:
    def __init__(self, definitions: Mapping[str, Schema], *, defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def node(self, schema: Schema, path: str, open_references: tuple[str, ...]) -> Schema:
        schema, open_references = self._inlined(schema, path, open_references)
        result: Schema = {}
        for keyword, value in schema.items():
            result |= self._keyword(keyword, value, path)
        _settle_free_form(result, path)
        if "type" not in result:
            raise UnstructuralError(f"{path}: no single type")
        if "properties" in result:
            result["properties"] = {
                name: self.node(child, f"{path}.{name}", open_references)
                for name, child in result["properties"].items()
            }
        for keyword in ("items", "additionalProperties"):
            if keyword in result:
                result[keyword] = self.node(result[keyword], f"{path}[]", open_references)
        if result["type"] == "array":
            result.setdefault("x-kubernetes-list-type", "atomic")
        return {key: result[key] for key in sorted(result, key=_reading_order)}

    def _inlined(
        self, schema: Schema, path: str, open_references: tuple[str, ...]
    ) -> tuple[Schema, tuple[str, ...]]:
        """The schema without `$ref` and without null.

        What is next to them wins, but a field's rules join those of its type.
        """
        while "$ref" in schema or "anyOf" in schema:
            beside = dict(schema)
            if "anyOf" in beside:
                inner = _only_option(beside.pop("anyOf"), path)
                if beside.get("default", ...) is None:
                    del beside["default"]
            else:
                name = beside.pop("$ref").removeprefix("#/$defs/")
                if name in open_references:
                    raise UnstructuralError(f"{path}: {name} contains itself")
                open_references = (*open_references, name)
                inner = self._definitions[name]
            rules = [*inner.get(RULES, ()), *beside.get(RULES, ())]
            schema = {**inner, **beside, **({RULES: rules} if rules else {})}
        return schema, open_references

    def _keyword(self, keyword: str, value: Any, path: str) -> Schema:
        if keyword == "title" or (keyword == "default" and not self._defaults):
            return {}
        match keyword:
            case "description":
                return {keyword: " ".join(str(value).split())}
            case "default":
                return {keyword: _without_nulls(value)}
            case "const":
                return {"enum": [value]}
            case "additionalProperties" if isinstance(value, bool):
                return {keyword: value} if value else {}
            case "additionalProperties":
                return {keyword: value}
            case _ if keyword == QUOTED:
                return {"anyOf": _quoting(value)}
        if keyword not in _COPIED:
            raise UnstructuralError(f"{path}: {keyword} has no structural form")
        return {keyword: value}


def _reading_order(keyword: str) -> int:
    """Description and type first, then the bounds, rules and children."""
    first = ("description", "type", "format", "default", "enum")
    last = (RULES, "required", "properties", "items")
    if keyword in last:
        return len(first) + 1 + last.index(keyword)
    return first.index(keyword) if keyword in first else len(first)


def _only_option(options: list[Schema], path: str) -> Schema:
    real = [option for option in options if option != {"type": "null"}]
    if len(real) != 1:
        raise UnstructuralError(f"{path}: a union of {len(real)} types")
    return real[0]


def _without_nulls(value: Any) -> Any:
    """A default without its nulls: null means that the field is absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _settle_free_form(result: Schema, path: str) -> None:
    """Free-form objects must say so; `additionalProperties` and `properties` exclude each other."""
    if result.get("additionalProperties") is True:
        del result["additionalProperties"]
        if not (result.get("x-kubernetes-preserve-unknown-fields") or "properties" in result):
            raise UnstructuralError(f"{path}: a free-form object that does not say so")


def _quoting(example: str) -> list[Schema]:
    """Validations that every string passes and every number fails, with advice in the error.

    *Note*: for a number in place of a string the API server says only `must be of type string`. It also
    evaluates the other validations: a number passes neither branch (there is none of at least 1 and at most
    0), and the error lists the value that the first one supports.
    """
    return [
        {"enum": [f"the same number in quotes, such as {example}"]},
        {"minimum": 1, "maximum": 0},
    ]
