"""Every alert fires for what it is named after, clears when it is over, and has a runbook."""

import json
import re
from pathlib import Path

import pytest
import yaml

from isoloss.yaml_text import to_yaml
from isoloss_operator.decide.jobs import FailureClass
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.process.sweep_load import SUCCEEDED
from tests.deploy.chart import CHART, ROOT, of_kind, render
from tests.monitoring.rules import FILE as DASHBOARD
from tests.monitoring.rules import JOB, RUNBOOKS, alerts, dashboard_queries, promtool, rule_file
from tests.monitoring.troubles import FALSE_ALARMS, ROWS

pytestmark = [pytest.mark.cluster, pytest.mark.alerts]
RUNBOOK_PAGE = ROOT / "docs" / "guides" / "runbooks.md"
METRICS_PAGE = ROOT / "docs" / "reference" / "metrics.md"
GRAFANA_COLUMNS = 24
HEALTHY = {f'isoloss_leader{{job="{JOB}"}}': "1x1700"}
"""A healthy operator beside the trouble, so that only the trouble is told."""


LONG = 600
"""Minutes beyond which rules are evaluated more rarely: that is nearly all that promtool does."""


def expectation(minute: int, firing: dict[str, int]) -> list[dict[str, object]]:
    """Which alerts fire at a minute, as promtool's expression tests."""
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [
        {"labels": f'{{alertname="{name}"}}', "value": count} for name, count in firing.items()
    ]
    return [{"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}]


@pytest.mark.parametrize("name", ROWS)
def test_an_alert_fires_and_clears(name: str, tmp_path: Path) -> None:
    """And no other one fires, but that there is no leader where the row has none."""
    row = ROWS[name]
    series = row.series if row.alert == "TwoLeaders" else {**HEALTHY, **row.series}
    play(
        series,
        [
            *(expectation(row.quiet, {}) if row.quiet else []),
            *expectation(row.fires, {f"Isoloss{row.alert}": 1}),
            *expectation(row.clears, {}),
        ],
        tmp_path,
        every="1m" if row.clears < LONG else "5m",
    )


@pytest.mark.parametrize("name", FALSE_ALARMS)
def test_nothing_fires_while_all_is_as_it_should_be(name: str, tmp_path: Path) -> None:
    minutes = range(10, 1600, 10)
    expected = [each for minute in minutes for each in expectation(minute, {})]
    series = FALSE_ALARMS[name]
    healthy = {} if any("isoloss_leader" in each for each in series) else HEALTHY
    # Nearly all that promtool does is to evaluate rules; only what comes and goes within minutes needs it more often.
    every = "2m" if any("process_start_time" in each for each in series) else "5m"
    play({**healthy, **series}, expected, tmp_path, every)


def play(
    series: dict[str, str], expected: list[dict[str, object]], folder: Path, every: str
) -> None:
    """Let promtool judge what fires where rules are evaluated so often."""
    test = {
        "evaluation_interval": every,
        "rule_files": [str(rule_file(folder))],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "promql_expr_test": expected,
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(to_yaml(test))
    answer = promtool("test", "rules", str(file))
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_every_alert_is_played() -> None:
    assert {f"Isoloss{row.alert}" for row in ROWS.values()} == set(alerts())


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    headings = set(re.findall(r"^## (\w+)$", RUNBOOK_PAGE.read_text(), re.MULTILINE))
    assert {f"Isoloss{heading}" for heading in headings} == set(alerts())
    for name, alert in alerts().items():
        anchor = name.removeprefix("Isoloss").lower()
        assert alert["annotations"]["runbook_url"] == f"{RUNBOOKS}#{anchor}"


def test_an_alert_can_be_left_out_and_labelled() -> None:
    given = alerts({"disabled": ["QueuedLong"], "alertLabels": {"team": "platform"}})
    assert "IsolossQueuedLong" not in given
    assert {alert["labels"]["team"] for alert in given.values()} == {"platform"}


@pytest.mark.parametrize("group", ["operator", "sweeps"])
def test_all_alerts_of_a_group_can_be_left_out(group: str, tmp_path: Path) -> None:
    """A group without rules is refused by the Prometheus Operator."""
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    disabled = [alert["alert"] for alert in groups[group]]
    file = rule_file(tmp_path, {"disabled": disabled})
    left = yaml.safe_load(file.read_text())["groups"]
    assert [each["name"] for each in left] == [
        f"isoloss-{each}" for each in groups if each != group
    ]
    assert all(each["rules"] for each in left)


def test_without_any_alert_there_is_no_rule_at_all() -> None:
    disabled = [name.removeprefix("Isoloss") for name in alerts()]
    rules = {"enabled": True, "disabled": disabled}
    assert of_kind(render({"metrics": {"rules": rules}}), "PrometheusRule") == []


def test_a_misspelt_alert_cannot_be_left_out() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    rules = schema["properties"]["metrics"]["properties"]["rules"]["properties"]
    assert {f"Isoloss{name}" for name in rules["disabled"]["items"]["enum"]} == set(alerts())


def test_alerts_dashboard_and_guide_name_metrics_that_are_served_only() -> None:
    served = set(re.findall(r"^\|`(\w+)`\|", METRICS_PAGE.read_text(), re.MULTILINE))
    expressions = [alert["expr"] for alert in alerts().values()]
    expressions += [query.expression for query in dashboard_queries()]
    expressions.append((ROOT / "docs" / "guides" / "monitoring.md").read_text())
    for expression in expressions:
        for name in re.findall(r"\bisoloss_\w+", expression):
            assert re.sub(r"_(bucket|count|sum)$", "", name) in served, expression


def test_no_panel_of_the_dashboard_leaves_the_page_or_covers_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        x, y, width, height = (panel["gridPos"][each] for each in "xywh")
        places = {(x + i, y + j) for i in range(width) for j in range(height)}
        assert x + width <= GRAFANA_COLUMNS, panel["title"]
        assert not places & taken, panel["title"]
        taken |= places


def test_alerts_name_reasons_and_classes_that_exist() -> None:
    known = {*map(str, Reason), *map(str, FailureClass), SUCCEEDED}
    for name, alert in alerts().items():
        named = re.findall(r'\b(?:reason|class)[=!]~?"([^"]+)"', alert["expr"])
        assert {each for group in named for each in group.split("|")} <= known, name
