"""How often the lattice that is placed without a grid holds the optimum: every cell of the published sweeps.

A cell counts whose optimum is inside its own published grid. Nothing is trained or replayed.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.science.tables import DENSE, MOE, SEQUENCE, load
from isoloss.placement import LAW, lattice, rounded_place
from isoloss.published import published_law
from isoloss.validation import Place

LINES, FACTOR = 3, 2.0
"""The defaults of search.placement."""
MIDDLE = ("step-law", "deepseek", "porian")


@dataclass(frozen=True)
class Cell:
    """One size at one number of tokens, and its optimum."""

    table: str
    active: float
    body: float
    """All parameters of the layers, every expert's included."""
    tokens: float
    optimum: np.ndarray
    """(ln LR, ln B), B in sequences."""


@dataclass(frozen=True)
class Placing:
    """A way to place a size: the geometric middle of these laws."""

    name: str
    laws: tuple[str, ...]
    whole: bool
    """By all parameters of the layers instead of the active ones."""

    def centre(self, cell: Cell) -> Place:
        """Where it puts the optimum."""
        params = cell.body if self.whole else cell.active
        found = [
            published_law(law).evaluate(total_flops=6.0 * params * cell.tokens, params=params)
            for law in self.laws
        ]
        rate, batch = np.exp(
            np.mean([np.log([o.learning_rate, o.batch_size(SEQUENCE)]) for o in found], axis=0)
        )
        return rounded_place(float(rate), float(batch))


PLACINGS = (
    Placing(f"{LAW}, all parameters", (LAW,), whole=True),
    Placing(f"{LAW}, active parameters", (LAW,), whole=False),
    Placing("deepseek", ("deepseek",), whole=False),
    Placing("porian", ("porian",), whole=False),
    Placing("middle of the three", MIDDLE, whole=False),
)
"""The first is that of the operator."""


def cells(folder: Path) -> list[Cell]:
    """Of both tables, as far as they are there."""
    return [
        cell
        for name, file in (("dense", DENSE), ("mixtures", MOE))
        if (folder / file).exists()
        for cell in _cells(name, folder / file)
    ]


def _cells(name: str, path: Path) -> Iterator[Cell]:
    table, body = load(path), _body_params(path)
    points = table.points
    for (n, d), judge in sorted(table.judges().items()):
        low, high = points[n, d][:, :2].min(axis=0), points[n, d][:, :2].max(axis=0)
        if judge.convex and np.all(judge.vertex > low) and np.all(judge.vertex < high):
            yield Cell(name, n, body[n], d, judge.vertex)


def _body_params(path: Path) -> Mapping[float, float]:
    """All parameters of the layers by the active ones."""
    with gzip.open(path, "rt") as rows:
        return {
            float(row["n_params_active"]): float(row["n_params_nonembedding"])
            for row in csv.DictReader(rows)
        }


def lines_outside(cell: Cell, centre: Place) -> float:
    """How many lines beyond the lattice's edge the optimum is; at most 0: inside."""
    placed = lattice(centre, LINES, FACTOR, FACTOR)
    out = [
        max(np.log(axis[0]) - at, at - np.log(axis[-1])) / np.log(FACTOR)
        for at, axis in zip(cell.optimum, (placed.learning_rates, placed.batch_sizes), strict=True)
    ]
    return float(max(out))


def coverage(found: Sequence[Cell]) -> Iterator[str]:
    """The lines of the table."""
    yield f"{'optimum of published cells':38s} {'cells':>6s} {'inside':>7s} {'or one line away':>17s}"
    for placing in PLACINGS:
        for table in dict.fromkeys(["", *(cell.table for cell in found)]):
            chosen = [cell for cell in found if table in cell.table]
            out = np.array([lines_outside(cell, placing.centre(cell)) for cell in chosen])
            name = f"{placing.name}: {table or 'all'}"
            inside, near = np.mean(out <= 0.0), np.mean(out <= 1.0)
            yield f"{name:38s} {len(out):6d} {inside:7.0%} {near:17.0%}"
