"""What the chart's dashboard asks."""

import json
from dataclasses import dataclass

from tests.deploy.chart import CHART
from tests.monitoring.rules import JOB

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
