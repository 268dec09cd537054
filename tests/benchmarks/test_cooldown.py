"""The command that compares losses, briefly: its points are planted instead of trained."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.cooldown import __main__ as command
from benchmarks.cooldown.training import TrainedPoint
from isoloss.laws import Run
from isoloss_trainer.termination import Interruption

RATES, BATCHES, TOKENS = (1e-3, 2e-3, 4e-3), (2, 4, 8), 400


def run(rate: float, batch: int, best: tuple[float, float]) -> Run:
    """A run of a grid whose loss is lowest at the learning rate and batch size of `best`."""
    loss = 3.0 + 0.01 * math.log(rate / best[0]) ** 2 + 0.02 * math.log(batch / best[1]) ** 2
    return Run(
        name=f"{rate}-{batch}",
        params=1e5,
        batch_size=float(batch),
        sequence_length=128,
        learning_rate=rate,
        tokens=np.array([TOKENS / 4, TOKENS]),
        losses=np.array([loss + 1.0, loss]),
    )


class Planted:
    """In place of the workshop: the losses of one size are lowest where the first and each other kind say."""

    def __init__(self, *_: object) -> None:
        self.best = {"raw": (1e-3, 8.0), "averaged": (1.7e-3, 5.0), "Linear": (2e-3, 4.0)}

    def points(self, _: str) -> list[SimpleNamespace]:
        tiny = SimpleNamespace(name="tiny")
        return [
            SimpleNamespace(name=f"{rate}-{batch}", proxy=tiny, rate=rate, batch=batch)
            for rate in RATES
            for batch in BATCHES
        ]

    def trained(self, point: SimpleNamespace, shape: str) -> TrainedPoint:
        best = self.best if shape == "Linear" else {shape: self.best["Linear"]}
        runs = {kind: run(point.rate, point.batch, at) for kind, at in best.items()}
        return TrainedPoint("tiny", runs, TOKENS, 80)


def test_the_table_says_what_each_loss_calls_best_and_what_believing_it_costs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "Workshop", Planted)
    monkeypatch.setattr(Interruption, "listen", lambda self: self)
    file = tmp_path / "table.md"
    monkeypatch.setattr(sys, "argv", ["cooldown", "--size", "tiny", "--markdown", str(file)])
    assert command.main() == 0
    lines = file.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| tiny")]
    raw, averaged, linear, root = (row.split(" | ")[2:] for row in rows)
    assert raw[:2] == ["raw", "1.00e-03, 8"]
    assert raw[-1] == f"{0.03 * math.log(2) ** 2:.4f} |"
    assert averaged[3] == "1.70e-03, 5.0"
    assert linear[-1] == root[-1] == "0.0000 |"
    assert lines[-1].startswith("Cooldowns took 20% of the runs' own tokens")
