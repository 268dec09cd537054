"""The committed CRDs: in step with the types, small, described and bounded."""

import json
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from isoloss.yaml_text import read_documents
from isoloss_operator.api import SWEEP_KIND
from isoloss_operator.generate import crdgen
from isoloss_operator.planning.specs import parse_prediction_spec, parse_sweep_spec

ROOT = Path(__file__).parents[2]
CRDS = sorted((ROOT / "crds").glob("isoloss.dev_*.yaml"))
EXAMPLES = sorted((ROOT / "crds" / "examples").glob("*.yaml"))
CLIENT_SIDE_APPLY_BYTES = 262_144


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from nodes(schema[keyword], f"{path}[]")


@cache
def schemas(part: str) -> dict[str, dict[str, Any]]:
    """All nodes of `spec` or `status` of both kinds by path."""
    found: dict[str, dict[str, Any]] = {}
    for crd in crdgen.definitions():
        root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        found |= dict(nodes(root["properties"][part], f"{crd['spec']['names']['kind']}.{part}"))
    return found


def test_the_committed_files_are_in_step_with_the_types() -> None:
    assert crdgen.main(["--check", str(ROOT)]) == 0


@pytest.fixture
def ungenerated(tmp_path: Path) -> Path:
    """A tree with what the chart's page is made from, and nothing that is generated."""
    chart = tmp_path / "helm" / "isoloss"
    chart.mkdir(parents=True)
    for name in ("Chart.yaml", "values.yaml", "values.schema.json"):
        shutil.copy(ROOT / "helm" / "isoloss" / name, chart)
    return tmp_path


def test_the_check_names_the_file_that_is_out_of_step(
    ungenerated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert crdgen.main([str(ungenerated)]) == 0
    assert crdgen.main(["--check", str(ungenerated)]) == 0
    stale = ungenerated / "crds" / "isoloss.dev_scalingsweeps.yaml"
    stale.write_text(stale.read_text().replace("Sequential", "Sequentially"))
    assert crdgen.main(["--check", str(ungenerated)]) == 1
    message = capsys.readouterr().err
    assert f"{stale} is out of step" in message
    assert "hyperparampredictions" not in message


def test_the_check_misses_no_file(ungenerated: Path) -> None:
    assert crdgen.main(["--check", str(ungenerated)]) == 1


@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.name)
def test_a_crd_fits_into_the_annotation_of_client_side_apply(path: Path) -> None:
    assert path.stat().st_size < CLIENT_SIDE_APPLY_BYTES / 2


@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.name)
def test_a_crd_has_no_yaml_anchors(path: Path) -> None:
    assert "&id" not in path.read_text()


def test_every_field_is_described() -> None:
    everything = schemas("spec") | schemas("status")
    bare = [p for p, s in everything.items() if not p.endswith("[]") and not s.get("description")]
    assert bare == []


BOUND = {"string": "maxLength", "array": "maxItems", "integer": "maximum"}


def test_everything_a_user_writes_is_bounded() -> None:
    """A string by its length, a list by its items, a number by its size, a map by its entries."""
    unbounded = []
    for path, schema in schemas("spec").items():
        bound = BOUND.get(schema["type"])
        if "additionalProperties" in schema:
            bound = "maxProperties"
        if bound and bound not in schema and "enum" not in schema:
            unbounded.append(path)
    assert unbounded == []


def test_lists_and_texts_of_the_status_are_bounded() -> None:
    bounds = {"string": {"maxLength", "enum", "format"}, "array": {"maxItems"}}
    unbounded = [
        path
        for path, schema in schemas("status").items()
        if schema["type"] in bounds and not bounds[schema["type"]] & schema.keys()
    ]
    assert unbounded == []


def test_no_spec_holds_a_float() -> None:
    assert [path for path, schema in schemas("spec").items() if schema["type"] == "number"] == []


def test_every_rule_says_what_is_wrong() -> None:
    for path, schema in schemas("spec").items():
        for rule in schema.get("x-kubernetes-validations", []):
            assert rule["message"], path


def test_the_api_server_fills_into_a_status_only_that_nothing_was_observed_yet() -> None:
    defaults = {path: s["default"] for path, s in schemas("status").items() if "default" in s}
    assert defaults == {
        "ScalingSweep.status": {"observedGeneration": -1},
        "HyperparamPrediction.status": {"observedGeneration": -1},
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_spec_that_the_operator_can_work_on(path: Path) -> None:
    for manifest in read_documents(path.read_text()):
        sweep = manifest["kind"] == SWEEP_KIND
        (parse_sweep_spec if sweep else parse_prediction_spec)(manifest["spec"])


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
