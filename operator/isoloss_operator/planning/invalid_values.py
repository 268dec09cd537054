"""What is wrong with a value of a spec, in words of the manifest rather than of the library that checks it."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from isoloss.numbers import hint
from isoloss_contract.records import in_words
from isoloss_operator.api.fields import DECIMAL_PATTERN, LABEL_PATTERN, NAME_PATTERN

FORMS = {
    DECIMAL_PATTERN: 'a decimal number such as "2e-4", in quotes',
    LABEL_PATTERN: "lower-case letters, digits and -, with a letter or digit at both ends",
    NAME_PATTERN: "lower-case letters, digits, - and ., with a letter or digit at both ends",
}
QUOTE = "'"
THREE = " (3 unless search.strategy is Sequential)"
SEQUENCES = "; batch sizes count sequences, not tokens"


def problem(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """What is wrong with a value of this type's spec, and what to write."""
    given, kind = detail["input"], detail["type"]
    if kind == "quoted":
        return f'is a number and must be a string: quote it, as in "{given!r}"'
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return f"is not a field of this resource{_meant(detail, model)}"
    if given is None:
        return "has no value: fill it in, or leave the field out"
    if kind == "dict_type" or "class_name" in detail.get("ctx", {}):
        return f"must have fields below it{_names(_fields(model, detail['loc']))}, and is {given!r:.60}"
    expected = _expected(detail)
    return f"must {expected}" if expected else in_words(detail)


def _expected(detail: ErrorDetails) -> str:
    """What a single value or a list must be; empty for a message of our own."""
    given, limits = detail["input"], detail.get("ctx", {})
    sequences = SEQUENCES if "batchSize" in str(detail["loc"]) else ""
    three = THREE if "learningRates" in detail["loc"] else ""
    match detail["type"]:
        case "int_parsing" | "int_parsing_size" | "int_type" | "int_from_float":
            return f"be a whole number, not {given!r:.60}{_written(given, sequences, whole=True)}"
        case "greater_than_equal":
            return f"be at least {limits['ge']}, not {given!r:.60}"
        case "less_than_equal":
            return f"be at most {limits['le']}, not {given!r:.60}{sequences}"
        case "too_short":
            return (
                f"have at least {limits['min_length']} items{three}, not {limits['actual_length']}"
            )
        case "too_long":
            return f"have at most {limits['max_length']} items, not {limits['actual_length']}"
        case "tuple_type" | "list_type":
            return f"be a list, in [ ] or with a - before each item, not {given!r:.60}"
        case "literal_error" | "enum":
            return f"be {limits['expected'].replace(QUOTE, '')}, not {given!r:.60}"
        case "string_type":
            return f"be text, not {given!r:.60}: put it in quotes"
        case "string_pattern_mismatch":
            form = FORMS.get(limits["pattern"], f"of the form {limits['pattern']}")
            return f"be {form}, not {given!r:.60}{_written(given)}"
        case "bool_type" | "bool_parsing":
            return f"be true or false, not {given!r:.60}"
    return ""


def _written(given: Any, instead: str = "", *, whole: bool = False) -> str:
    return (instead or hint(given, whole=whole)) if isinstance(given, str) else ""


def _meant(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """The field of the same place whose name is most like this one."""
    *place, name = detail["loc"]
    fields = _fields(model, place)
    joined = {field.lower(): field for field in fields}
    close = difflib.get_close_matches(str(name).replace("_", "").lower(), joined, n=1)
    return f": did you mean {joined[close[0]]}?" if close else _names(fields)


def _names(fields: Iterable[str]) -> str:
    names = sorted(fields)
    return f" ({', '.join(names)})" if names else ""


def _fields(model: type[BaseModel], place: Iterable[int | str]) -> Mapping[str, Any]:
    """Schemas of the fields at a place of this type, by name; empty where any name may be."""
    root = model.model_json_schema()
    node = root
    for part in place:
        node = _resolved(root, node)
        node = (
            node.get("items", {})
            if isinstance(part, int)
            else node.get("properties", {}).get(part, {})
        )
    found: Mapping[str, Any] = _resolved(root, node).get("properties", {})
    return found


def _resolved(root: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A schema itself, for one that refers to it or that may also be null."""
    node = next((each for each in node.get("anyOf", []) if each.get("type") != "null"), node)
    name = node.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = root["$defs"][name] if name else node
    return found
