"""What has no structural schema is refused; what has one is compared with the committed CRDs (test_crds) and given to a
real API server (test_api_server)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from isoloss_operator.api.crd_schema import UnstructuralError, structural_schema
from isoloss_operator.api.fields import ApiType


class Node(BaseModel):
    children: list[Node] = []


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
    holder = type("Holder", (ApiType,), {"__annotations__": {"x": annotation}})
    with pytest.raises(UnstructuralError, match=message) as refusal:
        structural_schema(holder)
    assert str(refusal.value).startswith("Holder.x")
