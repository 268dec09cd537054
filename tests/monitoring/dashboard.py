"""The chart's dashboard: its panels, where they lie and what they ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.deploy.chart import CHART
from tests.monitoring.rules import JOB

FILE = CHART / "files" / "dashboard.json"


@dataclass(frozen=True)
class Cell:
    """A panel's place on Grafana's grid, which is 24 columns wide; y counts from the top."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Target:
    """One query of a panel, its variables filled in."""

    expression: str
    legend: str
    """With labels as {{label}}."""


@dataclass(frozen=True)
class Panel:
    """What the dashboard's JSON says of one panel."""

    kind: str
    title: str
    cell: Cell
    unit: str = "short"
    targets: tuple[Target, ...] = ()
    minimum: float | None = None
    """Where the axis of values begins."""


@dataclass(frozen=True)
class Query:
    """One query of the dashboard."""

    panel: str
    expression: str


def dashboard_panels(job: str = JOB) -> list[Panel]:
    """Every panel, with all namespaces and names."""
    return [_panel(panel, job) for panel in json.loads(FILE.read_text())["panels"]]


def dashboard_queries(job: str = JOB) -> list[Query]:
    """Every query, with all namespaces and names."""
    panels = dashboard_panels(job)
    return [Query(panel.title, each.expression) for panel in panels for each in panel.targets]


def _panel(panel: Mapping[str, Any], job: str) -> Panel:
    place = panel["gridPos"]
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    targets = [
        Target(_filled_in(target["expr"], job), target.get("legendFormat", ""))
        for target in panel.get("targets", ())
    ]
    return Panel(
        kind=panel["type"],
        title=panel["title"],
        cell=Cell(place["x"], place["y"], place["w"], place["h"]),
        unit=defaults.get("unit", "short"),
        targets=tuple(targets),
        minimum=defaults.get("min"),
    )


def _filled_in(expression: str, job: str) -> str:
    for variable, value in {"$job": job, "$namespace": ".*", "$name": ".*"}.items():
        expression = expression.replace(variable, value)
    return expression
