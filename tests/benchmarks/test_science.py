"""The scores of the law engine on published and synthetic sweeps, briefly: one row."""

import sys
from pathlib import Path

import pytest

from benchmarks.science import __main__ as science
from benchmarks.science import tables
from benchmarks.science.tables import DENSE, MOE


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
    said = capsys.readouterr().err
    assert [line.partition(": not found")[0] for line in said.splitlines()] == [
        str(tmp_path / name) for name in (DENSE, MOE)
    ]
    assert "ISOLOSS_DATA" in said


def test_where_no_folder_is_named_synthetic_rows_alone_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ISOLOSS_DATA", raising=False)
    monkeypatch.setattr(tables, "__file__", str(tmp_path / "a" / "b" / "c" / "tables.py"))
    assert tables.tell_missing() == 0
    assert DENSE in capsys.readouterr().err
