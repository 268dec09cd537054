"""The pages' commands of `isoloss`, typed by someone who has a sweep's manifest and tables of runs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.pages import CHECKOUT
from tests.support.planted_runs import planted_csv, planted_runs
from tests.support.tables import write_probes
from tests.support.walk import Walk

EXAMPLE = CHECKOUT / "crds" / "examples" / "dense-sweep.yaml"
PARAMS, FLOPS = 3e8, 2.1e21
"""Of the checkpoint that the probes continue, and the budget that the README states for it."""


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    (tmp_path / "runs.csv").write_bytes(planted_csv(planted_runs()))
    for name in ("sweep.yaml", "dense-sweep.yaml"):
        shutil.copy2(EXAMPLE, tmp_path / name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return Walk(tmp_path, {**os.environ, "PATH": path, "COLUMNS": "100"})


def train_probes(walk: Walk, question: str, tokens: float) -> None:
    """Losses at the places that the command asks for, the lowest in the middle."""
    plan = json.loads(walk.again(f"isoloss validate laws.json {question} --json 2>/dev/null"))
    write_probes(walk.folder / "probes.csv", plan["probes"], 1.0, tokens, PARAMS)


def test_the_readme_leads_from_a_table_of_runs_to_a_report(walk: Walk) -> None:
    walk.again("isoloss fit runs.csv --out laws.json")
    train_probes(walk, "--initial-loss 2.08 --cpt-flops 2.1e21", FLOPS / (6 * PARAMS))
    (walk.folder / "laws.json").unlink()
    walk.open(CHECKOUT / "README.md", "isoloss")
    printed = walk.step("isoloss plan sweep.yaml")
    assert walk.left == []
    for said in ("accelerator h", "written to laws.json", "80% interval", "AnswerHolds"):
        assert said in printed
    assert "<!doctype html>" in (walk.folder / "report.html").read_text()


def test_probes_are_planned_and_judged_by_the_commands_of_their_page(walk: Walk) -> None:
    walk.again("isoloss fit runs.csv --out laws.json")
    walk.open(CHECKOUT / "docs" / "guides" / "validation.md", "isoloss validate")
    assert "5 continued runs of the checkpoint" in walk.step("isoloss validate laws.json")
    train_probes(walk, "--initial-loss 2.75 --cpt-tokens 1.2e10 --params 3e8", 1.2e10)
    assert "AnswerHolds" in walk.step("isoloss validate laws.json probes.csv")
    assert walk.left == []


def test_the_plan_of_the_example_is_as_the_page_on_sizing_prints_it(walk: Walk) -> None:
    page = CHECKOUT / "docs" / "guides" / "sizing.md"
    walk.open(page)
    printed = [line.split() for line in walk.step("isoloss plan").splitlines()]
    assert walk.left == []
    table = page.read_text().partition("```\n")[2].partition("```")[0]
    assert table.startswith("size")
    for row in table.splitlines():
        assert row.split() in printed, row
