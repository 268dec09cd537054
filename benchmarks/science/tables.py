"""The published sweeps, and each cell's own quadratic as the judge of answers there."""

from __future__ import annotations

import csv
import gzip
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isoloss.laws import Run

WIDE, NARROW = 0.05, 0.02
"""Nats above a cell's best run within which its quadratic is fitted: the narrow window where it holds enough runs.

The dense sweep's valley is steeper above the best learning rate than below. In the wide window a quadratic's
vertex lies 0.2 to 0.3 of ln LR too low, where raw losses, smoothed locally, are 0.002 nats above the best.
"""
ENOUGH = 15
SEQUENCE = 2048
DENSE = "steplaw_dense_final.csv.gz"
MOE = "steplaw_moe_final.csv.gz"

CellKey = tuple[float, float]
"""(N, nominal D)."""


@dataclass(frozen=True)
class Table:
    """A published sweep: its runs, each with one evaluation, and the cell (N, nominal D) of each."""

    runs: tuple[Run, ...]
    cells: tuple[CellKey, ...]

    @property
    def sizes(self) -> list[float]:
        """Ascending."""
        return sorted({n for n, _ in self.cells})

    @property
    def points(self) -> dict[CellKey, np.ndarray]:
        """Per cell the points (ln LR, ln B, loss)."""
        return points_of(self.runs, self.cells)

    def judges(self) -> dict[CellKey, Judge]:
        """Per cell the quadratic through all its runs."""
        return {key: judge(found) for key, found in self.points.items()}


def points_of(runs: tuple[Run, ...], cells: tuple[CellKey, ...]) -> dict[CellKey, np.ndarray]:
    """Per cell the points (ln LR, ln B, loss at the end)."""
    found: dict[CellKey, list[tuple[float, float, float]]] = defaultdict(list)
    for run, key in zip(runs, cells, strict=True):
        found[key].append((np.log(run.learning_rate), np.log(run.batch_size), run.losses[-1]))
    return {key: np.array(rows) for key, rows in found.items()}


def data_folder(given: str | None = None) -> Path:
    """Where the published sweeps are; it may not exist."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(given or os.environ.get("ISOLOSS_DATA") or beside)


def load(path: Path) -> Table:
    """Read one of the Step Law tables."""
    runs: list[Run] = []
    cells: list[CellKey] = []
    with gzip.open(path, "rt") as lines:
        for row in csv.DictReader(lines):
            n, lr = float(row["n_params_active"]), float(row["lr_peak"])
            b, loss = float(row["batch_size_sequences"]), float(row["val_loss"])
            tokens = np.array([float(row["tokens"])])
            runs.append(Run(row["run_id"], n, b, SEQUENCE, lr, tokens, np.array([loss])))
            cells.append((n, float(row["nominal_tokens"])))
    return Table(tuple(runs), tuple(cells))


@dataclass(frozen=True)
class Judge:
    """A cell's own quadratic."""

    centre: np.ndarray
    coefficients: np.ndarray
    vertex: np.ndarray
    """(ln LR, ln B)."""
    lowest: float
    convex: bool
    vertex_error: np.ndarray
    """(2,) standard deviations of the vertex, from the points' scatter."""

    def regret(self, lr: float, b: float) -> float:
        """Nats above the quadratic's minimum."""
        row = quadratic_terms(np.log([[lr, b]]) - self.centre)
        return float(row[0] @ self.coefficients - self.lowest)


def judge(points: np.ndarray) -> Judge:
    """The least-squares quadratic through the points (ln LR, ln B, loss) near the best."""
    near = near_best(points, NARROW)
    if len(near) < ENOUGH:
        near = near_best(points, WIDE)
    centre = near[:, :2].mean(axis=0)
    terms = quadratic_terms(near[:, :2] - centre)
    solver = np.linalg.pinv(terms)
    c = solver @ near[:, 2]
    hessian = np.array([[2 * c[3], c[4]], [c[4], 2 * c[5]]])
    convex = bool(np.linalg.eigvalsh(hessian)[0] > 0)
    turn = -np.linalg.pinv(hessian)
    offset = turn @ c[1:3]
    scatter = ((near[:, 2] - terms @ c) ** 2).sum() / max(len(near) - 6, 1)
    slope_at_vertex = solver[1:3] + np.stack(
        [
            2 * offset[0] * solver[3] + offset[1] * solver[4],
            offset[0] * solver[4] + 2 * offset[1] * solver[5],
        ]
    )
    error = np.sqrt(scatter * ((turn @ slope_at_vertex) ** 2).sum(axis=1))
    lowest = float(c[0] + 0.5 * c[1:3] @ offset)
    return Judge(centre, c, centre + offset, lowest, convex, error)


def near_best(points: np.ndarray, window: float) -> np.ndarray:
    """The points whose loss is at most `window` nats above the best one's."""
    return np.asarray(points[points[:, 2] <= points[:, 2].min() + window])


def quadratic_terms(p: np.ndarray) -> np.ndarray:
    """(points, 6): 1, x, y, x^2, xy, y^2."""
    x, y = p[:, 0], p[:, 1]
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
