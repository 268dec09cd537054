"""The pages' commands of `isoloss`, typed by someone who has a sweep's manifest and tables of runs."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from isoloss.laws_files import write_laws
from isoloss.yaml_text import read_documents
from isoloss_contract.checkpointing import checkpoint_bytes
from isoloss_operator.commands.costs import planned
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support.pages import CHECKOUT, blocks
from tests.support.printed_numbers import NUMBER, TOLERANCE, numbers
from tests.support.synthetic_runs import fitted_laws, synthetic_runs, write_runs
from tests.support.tables import write_probes
from tests.support.walk import Walk

EXAMPLE = CHECKOUT / "crds" / "examples" / "dense-sweep.yaml"
EXPORTS = CHECKOUT / "tests" / "isoloss" / "tables" / "exports"
PARAMS = 3e8
"""Of the checkpoint that the probes continue."""


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    write_runs(tmp_path / "runs.csv", synthetic_runs())
    shutil.copy2(EXAMPLE, tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return Walk(tmp_path, {**os.environ, "PATH": path, "COLUMNS": "100"})


def train_probes(walk: Walk, question: str, tokens: float) -> None:
    """Losses at the places that the command asks for, the lowest in the middle."""
    plan = json.loads(walk.again(f"isoloss validate laws.json {question} --json 2>/dev/null"))
    write_probes(walk.folder / "probes.csv", plan["probes"], 1.0, tokens, PARAMS)


def assert_shown(page: Path, begins: str, printed: str) -> None:
    """The block of the page that begins so is what was printed, but for lines left out and last digits."""
    (block,) = (each.text for each in blocks(page) if each.text.startswith(begins))
    lines = iter(printed.splitlines())
    for shown in (line for line in block.splitlines() if line != "..."):
        words = NUMBER.sub("#", shown)
        line = next((line for line in lines if NUMBER.sub("#", line) == words), None)
        assert line is not None, f"not printed: {shown}"
        assert numbers(line) == pytest.approx(numbers(shown), rel=TOLERANCE), line


ISOLOSS_WITHOUT_FIGURES = f"""#!{sys.executable}
import sys

if sys.argv[1] in {{"quickstart", "report"}}:
    from isoloss.cli import reporting
    from tests.support.pages import drawn_empty

    reporting.draw_figures = drawn_empty
from isoloss.cli.application import run

sys.exit(run(sys.argv[1:]))
"""


def test_the_readme_leads_from_nothing_to_a_report(walk: Walk) -> None:
    """With empty figures: the commands of tests/isoloss/test_core_installation.py draw those of the sample runs."""
    (walk.folder / "runs.csv").unlink()
    programs = walk.folder / "bin"
    programs.mkdir()
    (programs / "isoloss").write_text(ISOLOSS_WITHOUT_FIGURES)
    (programs / "isoloss").chmod(0o755)
    path = f"{programs}:{walk.environment['PATH']}"
    walk.environment = {**walk.environment, "PATH": path, "PYTHONPATH": str(CHECKOUT)}
    (walk.folder / "crds").symlink_to(CHECKOUT / "crds")
    walk.open(CHECKOUT / "README.md", "isoloss")
    assert_shown(CHECKOUT / "README.md", "A checkpoint of", walk.step("isoloss quickstart"))
    rest, guide = walk.left, CHECKOUT / "docs" / "guides" / "quickstart.md"
    walk.open(guide)
    assert_shown(guide, "isoloss predict", walk.step("isoloss quickstart"))
    assert "AnswerHolds: The answer holds: it loses 0.00" in walk.step("isoloss validate")
    walk.left = rest
    printed = walk.step("isoloss fit")
    assert walk.left == []
    for message in ("written to laws.json", "80% interval", "AnswerHolds", "accelerator h"):
        assert message in printed
    assert "<!doctype html>" in (walk.folder / "report.html").read_text()


def test_every_kind_of_export_is_read_as_its_page_says(walk: Walk) -> None:
    shutil.copytree(EXPORTS, walk.folder, dirs_exist_ok=True)
    page = CHECKOUT / "docs" / "guides" / "your-runs.md"
    walk.open(page)
    while walk.left:
        ((command, source),) = re.findall(
            r"(isoloss (?:fit|predict)) (\w+/[\w.]*)", walk.left[0].text
        )
        printed = walk.step(command)
        assert_shown(page, source, "\n".join(map(str.rstrip, printed.splitlines())))


def test_probes_are_planned_and_judged_by_the_commands_of_their_page(walk: Walk) -> None:
    write_laws(fitted_laws(), walk.folder / "laws.json")
    walk.open(CHECKOUT / "docs" / "guides" / "validation.md", "isoloss validate")
    assert "5 continued runs of the checkpoint" in walk.step("isoloss validate laws.json")
    train_probes(walk, "--initial-loss 2.75 --cpt-tokens 1.2e10 --params 3e8", 1.2e10)
    assert "AnswerHolds" in walk.step("isoloss validate laws.json probes.csv")
    assert walk.left == []


def test_the_first_sweep_on_gpus_costs_and_loses_what_its_guide_says(walk: Walk) -> None:
    shutil.copy2(EXAMPLE.with_name("first-sweep.yaml"), walk.folder)
    page = CHECKOUT / "docs" / "guides" / "gpu.md"
    (command,) = re.findall("isoloss plan first-sweep.yaml .*", page.read_text())
    plan = json.loads(walk.again(f"{command} --json"))
    (hours,) = re.findall(r"first \(one GPU; about (\d+) accelerator hours", page.read_text())
    assert round(plan["elapsed"]["search_hours"]) == int(hours)
    (share,) = re.findall(
        r"lose the equivalent of ([\d.]+)% of the run's compute", page.read_text()
    )
    assert 100 * plan["outlook"]["expected_regret_share"] == pytest.approx(float(share), abs=0.1)
    assert "Evaluations take up to" not in walk.again("isoloss plan first-sweep.yaml")


def test_the_plan_of_the_example_is_as_the_page_on_sizing_prints_it(walk: Walk) -> None:
    page = CHECKOUT / "docs" / "guides" / "sizing.md"
    walk.open(page)
    printed = [line.split() for line in walk.step("isoloss plan").splitlines()]
    assert walk.left == []
    table = page.read_text().partition("```\n")[2].partition("```")[0]
    assert table.startswith("size")
    for row in table.splitlines():
        assert row.split() in printed, row


def test_what_spot_nodes_lose_is_as_their_page_says() -> None:
    """The examples on pods with the grace and the rate of its manifest, and with the usual interval."""
    page = (CHECKOUT / "docs" / "guides" / "spot.md").read_text()
    rows = re.findall(
        r"^\| `(\S+)` \| ([\d.]+) GB \| (\d+) s \| ([\d.]+)% \| (\d+) s \| ([\d.]+)% \|$",
        page,
        re.MULTILINE,
    )
    found = {}
    for name in ("first", "dense", "moe"):
        (manifest,) = read_documents(EXAMPLE.with_name(f"{name}-sweep.yaml").read_text())
        spec = parse_sweep_spec({**manifest["spec"], "training": {"preemptionsPerDay": 6}})
        found |= {size.name: size for size in planned(spec).sizes}
    assert len(rows) == 4
    for name, size, written, usual, interval, lost in rows:
        given = replace(found[name].checkpointing, grace=15)
        assert f"{checkpoint_bytes(found[name].total_params) / 1e9:.1f}" == size
        assert f"{given.write:.0f}" == written
        assert f"{given.interval:.0f}" == interval
        assert f"{100 * given.lost_share:.1f}" == lost
        assert f"{100 * (given.copy / 600 + 6 * (given.write + 300) / 86400):.1f}" == usual
