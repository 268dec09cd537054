"""The API reference page, from the same schemas as the CRDs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from isoloss_operator.api import API_VERSION
from isoloss_operator.api.crd_schema import Schema
from isoloss_operator.generate.markdown import table

BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
    "pattern": "matches `{}`",
}


def api_page(crds: Iterable[Schema]) -> str:
    """Markdown: every field with its type, default, bounds and description, and every rule."""
    parts = [
        "# API reference",
        f"Group and version: `{API_VERSION}`. Numbers that are not whole are decimals in quotes.",
        "Written by `python -m isoloss_operator.generate.crdgen`; `kubectl explain` says the same.",
    ]
    for crd in crds:
        parts += _kind(crd)
    return "\n\n".join(parts) + "\n"


def _kind(crd: Schema) -> Iterator[str]:
    names = crd["spec"]["names"]
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    yield f"## {names['kind']}"
    short = ", ".join(f"`{name}`" for name in names["shortNames"])
    yield f"{root['description']} Short names: {short}."
    for part in ("spec", "status"):
        yield f"### {names['kind']} {part}"
        yield table(
            ("field", "type", "default", "meaning"), _fields(root["properties"][part], part)
        )
    rules = [*_rules({**root, "properties": {"spec": root["properties"]["spec"]}}, "")]
    yield f"### Rules of a {names['kind']}"
    yield "\n".join(rules)


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, ...]]:
    required = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        inner = child.get("items", child)
        default = "required" if name in required else _default(child)
        meaning = " ".join([child.get("description", ""), *_bounds(child)])
        yield f"`{here}`", _type(child), default, meaning.strip()
        yield from _fields(inner, here + ("[]" if "items" in child else ""))


def _default(schema: Schema) -> str:
    if "default" not in schema or schema["type"] == "object":
        return ""
    return f"`{json.dumps(schema['default'])}`"


def _type(schema: Schema) -> str:
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    return "decimal" if "anyOf" in schema else str(schema["type"])


def _bounds(schema: Schema) -> Iterator[str]:
    said = [words.format(schema[key]) for key, words in BOUNDS.items() if key in schema]
    said = [words.replace(" 1 items", " 1 item") for words in said]
    if "anyOf" in schema:
        said = []  # a decimal's length and pattern say less than its rule
    if "enum" in schema:
        said = ["one of " + ", ".join(f"`{value}`" for value in schema["enum"])]
    if said:
        yield f"({'; '.join(said)})"


def _rules(schema: dict[str, Any], path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"- `{path or 'metadata.name'}`: {rule['message']}"
    for name, child in schema.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")
