"""The scores of the law engine on published and planted sweeps, briefly: one row."""

from __future__ import annotations

import sys

import pytest

from benchmarks.science import __main__ as science


def test_a_row_is_scored_and_pooled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["/nonexistent", "--seeds", "1", "--samples", "5", "--only", "skewed, diverging"]
    monkeypatch.setattr(sys, "argv", ["science", *options])
    science.main()
    head, row, pooled = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["row", "isoloss"]
    assert row.startswith("planted skewed, diverging")
    assert pooled
