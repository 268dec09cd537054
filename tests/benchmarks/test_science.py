"""The scores of the law engine on published and synthetic sweeps, briefly: one row."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.science import __main__ as science
from benchmarks.science import tables
from benchmarks.science.tables import DENSE, MOE
from tests.deploy.chart import ROOT


def test_a_row_is_scored_and_pooled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["/nonexistent", "--seeds", "1", "--samples", "5", "--only", "skewed, diverging"]
    monkeypatch.setattr(sys, "argv", ["science", *options])
    science.main()
    head, row, pooled = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["row", "isoloss"]
    assert row.startswith("synthetic skewed, diverging")
    assert pooled


def test_missing_tables_of_a_named_folder_are_said_and_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["science", str(tmp_path), "--only", "published"])
    assert science.main() == 1
    message = capsys.readouterr().err
    assert [line.partition(": not found")[0] for line in message.splitlines()] == [
        str(tmp_path / name) for name in (DENSE, MOE)
    ]
    assert "ISOLOSS_DATA" in message


def test_where_no_folder_is_named_synthetic_rows_alone_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ISOLOSS_DATA", raising=False)
    monkeypatch.setattr(tables, "__file__", str(tmp_path / "a" / "b" / "c" / "tables.py"))
    assert tables.tell_missing() == 0
    assert DENSE in capsys.readouterr().err


BRIEF = {
    "bench_laws": ("--most 18", "18 runs of 2 sizes x 24 evaluations: "),
    "coverage": ("--seeds 1 --samples 5 --only exact --grids two-3x3", "j exact laws"),
}
"""Options, and what is printed with them."""


@pytest.mark.whole
@pytest.mark.parametrize("name", BRIEF)
def test_a_program_runs_and_prints_its_table(name: str) -> None:
    options, printed = BRIEF[name]
    command = [sys.executable, "-m", f"benchmarks.{name}", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert printed in done.stdout
