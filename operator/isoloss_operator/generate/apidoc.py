"""The API reference page, from the same schemas as the CRDs."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from isoloss_operator.api import API_VERSION
from isoloss_operator.api.crd_schema import Schema
from isoloss_operator.api.fields import LABEL_PATTERN, NAME_PATTERN
from isoloss_operator.cluster import manifests
from isoloss_operator.decide import observation

RANGES = (
    ("minimum", "maximum", ""),
    ("minItems", "maxItems", " items"),
    ("", "maxProperties", " entries"),
)
"""Bounds and the noun that follows them. Longest texts are not said: nobody meets them."""
FORMS = {LABEL_PATTERN: "DNS label", NAME_PATTERN: "DNS name"}

ON_JOBS = {
    f"label `{observation.LABEL_SWEEP}`": "Name of the resource, if it fits a label.",
    f"label `{observation.LABEL_KIND}`": "prepare, train or evaluate.",
    f"label `{observation.LABEL_OWNER_UID}`": "UID of the resource.",
    f"annotation `{manifests.OWNER_ANNOTATION}`": "KIND/NAME of the resource.",
    f"annotation `{manifests.PODS_ANNOTATION}`": "Pods that train the point together, if they are several.",
}
"""Metadata that people select or read; the other labels are the operator's own."""

EXACT_INTEGERS = 2**53
"""The bound of every count of tokens: what JSON holds exactly. It says nothing about the field."""


def api_page(crds: Iterable[Schema]) -> str:
    """Markdown: every field with its type and description, of a spec also defaults and bounds, and every rule."""
    parts = [
        "# API reference",
        f"Group and version: `{API_VERSION}`. Numbers that are not whole are decimals in quotes.",
        "Written by `python -m isoloss_operator.generate.crdgen`; `kubectl explain` says the same.",
    ]
    for crd in crds:
        parts += _kind(crd)
    parts += ["## Metadata of Jobs", table(("on Jobs", "meaning"), ON_JOBS.items())]
    return "\n\n".join(parts) + "\n"


def _kind(crd: Schema) -> Iterator[str]:
    names = crd["spec"]["names"]
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    yield f"## {names['kind']}"
    short = ", ".join(f"`{name}`" for name in names["shortNames"])
    yield f"{root['description']} Short names: {short}."
    yield f"### {names['kind']} spec"
    fields = [*_fields(root["properties"]["spec"], "spec", {})]
    yield table(
        ("field", "type", "default", "meaning"),
        (
            (each.name, each.type, each.default, f"{each.meaning} {each.bounds}".strip())
            for each in fields
        ),
    )
    yield f"### {names['kind']} status"
    fields = [*_fields(root["properties"]["status"], "status", {})]
    yield table(
        ("field", "type", "meaning"), ((each.name, each.type, each.meaning) for each in fields)
    )
    yield f"### Rules of a {names['kind']}"
    yield "\n".join(_rules({**root, "properties": {"spec": root["properties"]["spec"]}}))


@dataclass(frozen=True)
class _Field:
    """A line of a table of fields, in Markdown."""

    name: str
    type: str
    default: str
    meaning: str
    bounds: str


def _fields(schema: Schema, path: str, described: dict[str, str]) -> Iterator[_Field]:
    """The fields below `path`, each object's own fields once: `described` has where, by their schema."""
    required = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        inner = child.get("items", child)
        default = "required" if name in required else _default(child)
        meaning = child.get("description", "")
        content = json.dumps(inner.get("properties", {}), sort_keys=True)
        first = described.setdefault(content, here)
        is_repeated = first != here and "properties" in inner
        if is_repeated:
            meaning = f"{meaning} Fields as in `{first}`."
        yield _Field(f"`{here}`", _type(child), default, meaning.strip(), _bounds(child))
        if not is_repeated:
            yield from _fields(inner, here + ("[]" if "items" in child else ""), described)


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


def _bounds(schema: Schema) -> str:
    bounds = {key: value for key, value in schema.items() if value != EXACT_INTEGERS}
    bounds_in_words = [
        _range(bounds.get(low), bounds.get(high), noun) for low, high, noun in RANGES
    ]
    if "pattern" in bounds and "anyOf" not in schema:  # a decimal's says less than its rule
        form = FORMS.get(bounds["pattern"], f"matches `{bounds['pattern']}`")
        most = bounds.get("maxLength", 63)
        bounds_in_words.append(f"{form} of at most {most} characters" if most < 63 else form)
    if "enum" in schema:
        bounds_in_words = ["one of " + ", ".join(f"`{value}`" for value in schema["enum"])]
    text = "; ".join(filter(None, bounds_in_words))
    return f"({text})" if text else ""


def _range(low: Any, high: Any, noun: str) -> str:
    if low is None or high is None:
        end = (
            f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""
        )
        return end and f"{end}{noun if (low or high) != 1 else noun.removesuffix('s')}"
    return f"{low} to {high}{noun}"


def _rules(schema: Schema) -> Iterator[str]:
    """One line for each message, with every field that it is about."""
    fields = defaultdict[str, list[str]](list)
    for path, message in _messages(schema, ""):
        fields[message].append(f"`{path or 'metadata.name'}`")
    for message, paths in fields.items():
        yield f"- {', '.join(dict.fromkeys(paths))}: {message}"


def _messages(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Of every rule at and below `path`: where it is, and what it says."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule["message"]
    for name, child in schema.get("properties", {}).items():
        yield from _messages(child, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from _messages(schema["items"], f"{path}[]")


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    cells = [head, ["---"] * len(head)]
    cells += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"|{'|'.join(row)}|" for row in cells)
