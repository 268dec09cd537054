"""`make gpu-check` works on the day: all of it, at toy size, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.gpu_check.__main__ import main
from benchmarks.gpu_check.checks import CHECKS
from benchmarks.gpu_check.table import as_markdown


@pytest.mark.slow
def test_every_check_runs_at_toy_size_and_none_twice(tmp_path: Path) -> None:
    assert main(["--folder", str(tmp_path), "--toy"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == list(CHECKS)
    found = {name: entry["found"] for name, entry in results.items()}
    for name, row in found["agreement"].items():
        assert row["loss off by"] < (1e-6 if "float32" in name else 0.02)
        assert row["worst gradient off by"] < (1e-4 if "float32" in name else 0.2)
    assert set(found["deterministic"].values()) == {"equal"}
    for row in found["compilation"].values():
        assert row["graph breaks"] == 0
        graphs = "graphs after the first step and an evaluation"
        assert row["graphs after another batch size"] == row[graphs]
    assert found["interruption"]["as they should be"]
    assert found["interruption"]["resumed"]
    assert found["interruption"]["trajectories"] == "equal"
    assert found["cross-entropy"]["ours"]["loss off by"] < 1e-4
    assert found["cross-entropy"]["plain"]["loss off by"] > 1e-4
    start = found["initial-loss"]
    assert start["loss"] == pytest.approx(start["log of the vocabulary"], abs=0.5)
    assert found["speed-dense-100m"]["ours"]["tokens/s"] > 0
    text = (tmp_path / "results.md").read_text()
    assert main(["--folder", str(tmp_path), "--toy"]) == 0
    assert (tmp_path / "results.md").read_text() == text


def test_a_check_that_fails_says_why_and_is_repeated_by_the_next_call() -> None:
    failed = {"status": "failed", "seconds": 3.0, "toy": False, "reason": "took too long"}
    text = as_markdown({"speed": {**failed, "end_of_log": "CUDA error: device-side assert"}})
    assert "failed in 3.0 s" in text
    assert "took too long" in text
    assert "device-side assert" in text


def test_findings_of_the_same_kind_share_a_table() -> None:
    found = {"torch": "2.11", "a": {"ms": 1.23456, "peak": None}, "b": {"ms": [1.0, 2.0]}}
    entry = {"status": "done", "seconds": 1.0, "toy": True, "found": found}
    text = as_markdown({"heads": entry})
    assert "| torch | 2.11 |" in text
    assert "| a | 1.235 | – |" in text
    assert "| b | 1, 2 | – |" in text
