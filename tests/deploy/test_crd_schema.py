"""From pydantic types to structural schemas: what is converted, and what is refused."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, Field

from isoloss_operator.api.crd_schema import QUOTED, UnstructuralError, structural_schema
from isoloss_operator.api.fields import ApiType, Rule


class Part(ApiType):
    """A part."""

    size: int = 1
    """Its size."""
    note: str | None = None


class Node(BaseModel):
    children: list[Node] = []


def properties(annotation: Any, **extra: Any) -> dict[str, Any]:
    """The schema of one field `x` of that type."""
    model = type("Holder", (ApiType,), {"__annotations__": {"x": annotation}, **extra})
    field: dict[str, Any] = structural_schema(model)["properties"]["x"]
    return field


def test_a_reference_is_written_out_and_the_fields_own_description_wins() -> None:
    class Whole(ApiType):
        part: Part
        """The part of this whole."""

    part = structural_schema(Whole)["properties"]["part"]
    assert part["description"] == "The part of this whole."
    assert part["properties"]["size"] == {
        "description": "Its size.",
        "type": "integer",
        "default": 1,
    }


def test_a_reference_without_a_description_of_its_own_keeps_the_types() -> None:
    assert properties(Part)["description"] == "A part."


def test_the_rules_of_a_field_join_those_of_its_type() -> None:
    class Ruled(ApiType):
        rules: ClassVar = (Rule("has(self.x)", "of the type"),)
        x: int = 1

    ruled = properties(Annotated[Ruled, Rule("self == oldSelf", "of the field")])
    messages = [rule["message"] for rule in ruled["x-kubernetes-validations"]]
    assert messages == ["of the type", "of the field"]


def test_an_optional_field_is_one_that_may_be_absent_and_has_no_null_default() -> None:
    assert properties(Part | None, x=None).keys() == {"description", "type", "properties"}
    assert properties(str | None, x=None) == {"type": "string"}


def test_a_default_object_holds_no_nulls() -> None:
    assert properties(Part, x=Part())["default"] == {"size": 1}


def test_a_status_has_no_defaults_at_any_depth() -> None:
    class Whole(ApiType):
        part: Part = Part()

    schema = structural_schema(Whole, defaults=False)
    assert "default" not in str(schema)


def test_exclusive_bounds_become_a_bound_and_a_flag() -> None:
    assert properties(Annotated[float, Field(gt=0, lt=1)]) == {
        "type": "number",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 1,
        "exclusiveMaximum": True,
    }


def test_a_literal_of_one_value_is_an_enumeration_of_one() -> None:
    assert properties(Literal["A"]) == {"type": "string", "enum": ["A"]}


def test_a_property_named_like_a_keyword_is_a_property() -> None:
    class Odd(ApiType):
        title: str
        discriminator: str
        const: str

    assert structural_schema(Odd)["properties"].keys() == {"title", "discriminator", "const"}


def test_a_list_is_atomic_unless_it_says_otherwise() -> None:
    assert properties(tuple[int, ...])["x-kubernetes-list-type"] == "atomic"
    by_name = Field(json_schema_extra={"x-kubernetes-list-type": "set"})
    assert properties(Annotated[tuple[int, ...], by_name])["x-kubernetes-list-type"] == "set"


def test_refusing_unknown_fields_is_no_part_of_a_structural_schema() -> None:
    assert "additionalProperties" not in structural_schema(Part)


def test_a_map_keeps_the_schema_of_its_values() -> None:
    assert properties(dict[str, int])["additionalProperties"] == {"type": "integer"}


def test_every_string_and_no_number_passes_what_marks_a_quoted_field() -> None:
    quoted = Annotated[str, Field(json_schema_extra={QUOTED: '"1"'})]
    words, impossible = properties(quoted)["anyOf"]
    assert words == {"enum": ['the same number in quotes, such as "1"']}
    assert impossible["minimum"] > impossible["maximum"]


def test_descriptions_are_one_line() -> None:
    class Long(ApiType):
        x: int
        """One line
        and another."""

    assert structural_schema(Long)["properties"]["x"]["description"] == "One line and another."


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        pytest.param(int | str, "a union of 2 types", id="a union"),
        pytest.param(tuple[int, str], "prefixItems has no structural form", id="a tuple of two"),
        pytest.param(set[int], "uniqueItems has no structural form", id="a set"),
        pytest.param(Any, "no single type", id="anything"),
        pytest.param(Literal["A", 1], "no single type", id="literals of two types"),
        pytest.param(dict[str, Any], "a free-form object that does not say so", id="a free map"),
        pytest.param(
            dict[Annotated[str, Field(pattern="^a$")], int],
            "patternProperties has no structural form",
            id="keys with a pattern",
        ),
        pytest.param(
            Annotated[str, Field(examples=["a"])], "examples has no structural form", id="examples"
        ),
        pytest.param(Node, "Node contains itself", id="a type that contains itself"),
    ],
)
def test_what_has_no_structural_form_is_refused_with_its_path(
    annotation: Any, message: str
) -> None:
    with pytest.raises(UnstructuralError, match=message) as refusal:
        properties(annotation)
    assert str(refusal.value).startswith("Holder.x")
