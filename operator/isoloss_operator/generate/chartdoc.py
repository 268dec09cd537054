"""The chart's README: every value with its type, default and meaning, from the values and their schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from isoloss_operator.generate.apidoc import table

Schema = Mapping[str, Any]
INTRODUCTION = """\
# isoloss chart

Written by `python -m isoloss_operator.generate.crdgen` from `values.yaml` and `values.schema.json`.

Installs the operator, its rights and both CRDs. Kubernetes {versions}, Helm 3.14 or newer or Helm 4. How to
install it, from images to a prediction, is in docs/guides/install.md of the repository. Helm refuses
values that are not listed here.

    helm install isoloss helm/isoloss --namespace isoloss-system --create-namespace --values values.yaml
    helm test isoloss --namespace isoloss-system --logs

## Values
"""


def chart_page(chart: Path) -> str:
    """Markdown. Raises OSError if the chart's files are missing."""
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    values_table = table(("value", "type", "default", "meaning"), _rows(schema, values, ""))
    introduction = INTRODUCTION.format(versions=about["kubeVersion"].removesuffix("-0"))
    return f"{introduction}\n{values_table}\n"


def _rows(schema: Schema, values: Any, path: str) -> Iterator[tuple[str, str, str, str]]:
    for name, node in schema["properties"].items():
        if name == "global":  # Helm's own
            continue
        inside, default = f"{path}{name}", values[name]
        is_group = node.get("additionalProperties") is False and isinstance(default, dict)
        if is_group and default:
            yield from _rows(node, default, f"{inside}.")
            continue
        kinds = node.get("type", "any")
        kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
        shown = json.dumps(default, ensure_ascii=False)
        yield f"`{inside}`", kind, f"`{shown}`", node["description"]
