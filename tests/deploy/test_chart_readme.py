"""The chart's README names every value, with its type, default and meaning."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "helm" / "isoloss"


def rows(schema: Mapping[str, Any], values: Any, path: str = "") -> Iterator[str]:
    """Lines of the table, from the values and their schema."""
    for name, node in schema["properties"].items():
        if name == "global":  # Helm's own
            continue
        inside, default = f"{path}{name}", values[name]
        if default and node.get("additionalProperties") is False and isinstance(default, dict):
            yield from rows(node, default, f"{inside}.")
            continue
        kinds = node.get("type", "any")
        kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
        shown = json.dumps(default, ensure_ascii=False)
        yield f"| `{inside}` | {kind} | `{shown}` | {node['description']} |"


def test_the_readme_has_every_value_with_its_type_default_and_meaning() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    page = (CHART / "README.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `")] == list(
        rows(schema, values)
    )
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f"Kubernetes {about['kubeVersion'].removesuffix('-0')}," in page
