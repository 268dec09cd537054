"""The chart's alerts as Prometheus gets them, and Prometheus' own programs."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from isoloss.yaml_text import to_yaml
from tests.deploy.chart import CHART, ROOT, one

Json = dict[str, Any]
RUNBOOKS = "https://docs.example.com/runbooks"
JOB = "isoloss-system/isoloss-operator"
"""The job label that the chart gives to the release `isoloss`."""


def rule_file(folder: Path, values: Mapping[str, Any] | None = None) -> Path:
    """What the PrometheusRule holds, as a file for Prometheus."""
    file = folder / "rules.yaml"
    file.write_text(to_yaml(_spec(json.dumps(values or {}))))
    return file


def alerts(values: Mapping[str, Any] | None = None) -> dict[str, Json]:
    """The alerts by name."""
    groups = _spec(json.dumps(values or {}))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@cache
def _spec(values: str) -> Json:
    """Of the PrometheusRule for these values, as JSON text; not to be changed."""
    rules = {"enabled": True, "runbookUrl": RUNBOOKS, **json.loads(values)}
    manifest = one("PrometheusRule", {"metrics": {"rules": rules}})
    return dict(manifest["spec"])


def program(name: str) -> str:
    """Path of prometheus or promtool; skips where there is none."""
    command = [ROOT / "scripts" / "find-prometheus.sh"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(answer.stderr.strip().splitlines()[-1])
    return str(Path(answer.stdout.strip()) / name)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    command = [program("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


FILE = CHART / "files" / "dashboard.json"


@dataclass(frozen=True)
class Query:
    """One query of the dashboard."""

    panel: str
    expression: str


def dashboard_queries() -> list[Query]:
    """Every query, with all namespaces and names."""
    panels = json.loads(FILE.read_text())["panels"]
    return [
        Query(panel["title"], filled_in(target["expr"]))
        for panel in panels
        for target in panel.get("targets", ())
    ]


def filled_in(expression: str) -> str:
    """With all namespaces and names."""
    for variable, value in {"$job": JOB, "$namespace": ".*", "$name": ".*"}.items():
        expression = expression.replace(variable, value)
    return expression
