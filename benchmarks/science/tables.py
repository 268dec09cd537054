"""The published sweeps, and the judge of answers in each of their cells."""

import csv
import gzip
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.science.judging import Judge, judge
from isoloss.laws import Run

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
        """Per cell the points (ln LR, ln B, loss at the end)."""
        found: dict[CellKey, list[tuple[float, float, float]]] = defaultdict(list)
        for run, key in zip(self.runs, self.cells, strict=True):
            found[key].append((np.log(run.learning_rate), np.log(run.batch_size), run.losses[-1]))
        return {key: np.array(rows) for key, rows in found.items()}

    def judges(self) -> dict[CellKey, Judge]:
        """Per cell what its own runs say."""
        return {key: judge(found) for key, found in self.points.items()}


def lines(values: Sequence[float], apart: float) -> np.ndarray:
    """ln of distinct values, ascending; those less than `apart` above the one before are spellings of it."""
    ordered = np.unique(np.log(values))
    return np.asarray(ordered[np.concatenate([[True], np.diff(ordered) > apart])])


def data_folder(given: str | None = None) -> Path:
    """Where the published sweeps are; it may not exist."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(given or os.environ.get("ISOLOSS_DATA") or beside)


def tell_missing(given: str | None = None) -> int:
    """Say on standard error which tables are not there, so that nobody takes the rest for everything. The exit code
    of a benchmark that has ended: 1 if its folder was named and lacks one."""
    missing = [path for name in (DENSE, MOE) if not (path := data_folder(given) / name).exists()]
    for path in missing:
        print(
            f"{path}: not found, and the rows of that published sweep are left out: name its folder as an argument "
            "or in ISOLOSS_DATA (docs/evidence/README.md says where it comes from)",
            file=sys.stderr,
        )
    return int(bool(missing) and bool(given or os.environ.get("ISOLOSS_DATA")))


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
