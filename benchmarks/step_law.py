"""Regret on published sweeps: fit on some model sizes, predict LR and batch size at the others.

    python -m benchmarks.step_law [DATA_FOLDER] [--required-only]

The data (columns described beside them) are looked for in DATA_FOLDER, $ISOLOSS_DATA, or ../shared/data
beside the repository. Regret is the loss at a prediction above the minimum of the held-out cell's own
quadratic in (ln LR, ln B), fitted to the cell's runs within 0.05 nats of its best.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from isoloss.laws import FitOptions, PredictionQuery, Refused, Run, fit_laws, predict

WINDOW = 0.05
SEQUENCE = 2048
DENSE = "steplaw_dense_final.csv.gz"
MOE = "steplaw_moe_final.csv.gz"

CellKey = tuple[float, float]
Answer = Callable[[float, float], tuple[float, float] | None]
"""(N, D) to (LR, B in sequences)."""


@dataclass(frozen=True)
class Table:
    """A published sweep: its runs, and per (N, nominal D) the points (ln LR, ln B, loss)."""

    runs: tuple[Run, ...]
    points: dict[CellKey, np.ndarray]

    @property
    def sizes(self) -> list[float]:
        return sorted({n for n, _ in self.points})


def data_folder(given: str | None = None) -> Path:
    """Where the published sweeps are; it may not exist."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(given or os.environ.get("ISOLOSS_DATA") or beside)


def load(path: Path) -> Table:
    """Read one of the Step Law tables."""
    runs: list[Run] = []
    points: dict[CellKey, list[tuple[float, float, float]]] = defaultdict(list)
    with gzip.open(path, "rt") as lines:
        for row in csv.DictReader(lines):
            n, d = float(row["n_params_active"]), float(row["nominal_tokens"])
            lr, b = float(row["lr_peak"]), float(row["batch_size_sequences"])
            loss, tokens = float(row["val_loss"]), float(row["tokens"])
            runs.append(
                Run(row["run_id"], n, b, SEQUENCE, lr, np.array([tokens]), np.array([loss]))
            )
            points[n, d].append((np.log(lr), np.log(b), loss))
    return Table(tuple(runs), {key: np.array(rows) for key, rows in points.items()})


@dataclass(frozen=True)
class Judge:
    """A cell's own quadratic."""

    centre: np.ndarray
    coefficients: np.ndarray
    vertex: np.ndarray
    lowest: float

    def regret(self, lr: float, b: float) -> float:
        """Nats above the quadratic's minimum."""
        row = _design(np.log([[lr, b]]) - self.centre)
        return float(row[0] @ self.coefficients - self.lowest)


def judge(points: np.ndarray) -> Judge:
    near = points[points[:, 2] <= points[:, 2].min() + WINDOW]
    centre = near[:, :2].mean(axis=0)
    c = np.linalg.lstsq(_design(near[:, :2] - centre), near[:, 2], rcond=None)[0]
    hessian = np.array([[2 * c[3], c[4]], [c[4], 2 * c[5]]])
    offset = -np.linalg.solve(hessian, c[1:3])
    return Judge(centre, c, centre + offset, float(c[0] + 0.5 * c[1:3] @ offset))


def _design(p: np.ndarray) -> np.ndarray:
    x, y = p[:, 0], p[:, 1]
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)


def engine(runs: Sequence[Run]) -> dict[str, Answer]:
    """The default answer and both routes, through the public interface."""
    laws = fit_laws(runs, FitOptions(bootstrap_samples=100))

    def default(n: float, d: float) -> tuple[float, float] | None:
        found = predict(laws, PredictionQuery(total_flops=6.0 * n * d, params=n))
        if isinstance(found, Refused):
            return None
        return found.learning_rate.value, found.batch_size_raw

    def along_frontier(n: float, d: float) -> tuple[float, float] | None:
        found = predict(laws, PredictionQuery(total_flops=6.0 * n * d, params=n))
        if isinstance(found, Refused) or "iso-loss" not in found.routes:
            return None
        point = found.routes["iso-loss"]
        return point.learning_rate.value, point.batch_size.value

    return {"isoloss, default answer": default, "isoloss, iso-loss route": along_frontier}


def paper_route(runs: Sequence[Run]) -> Answer:
    """The paper's route at its plainest: straight lines, argmin over sizes, power laws by polyfit."""
    curves: dict[tuple[float, float, float], list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        key = (run.params, run.learning_rate, run.batch_size)
        curves[key].append((float(np.log(run.losses[0])), float(np.log(run.tokens[0]))))
    losses = np.log([run.losses[0] for run in runs])
    optima = []
    lowest, highest = (float(q) for q in np.quantile(losses, [0.02, 0.6]))
    for level in np.linspace(lowest, highest, 12):
        reached = [(*_tokens_at(c, level), key) for key, c in curves.items()]
        cheapest = min(
            ((d + np.log(6 * key[0]), key) for d, ok, key in reached if ok), default=None
        )
        if cheapest is not None:
            optima.append((level, cheapest[0], np.log(cheapest[1][1]), np.log(cheapest[1][2])))
    level, flops, rate, batch = np.array(optima).T
    curve = np.polyfit(flops, level, 1)
    g, f = np.polyfit(level, rate, 1), np.polyfit(level, batch, 1)

    def answer(n: float, d: float) -> tuple[float, float]:
        loss = np.polyval(curve, np.log(6.0 * n * d))
        return float(np.exp(np.polyval(g, loss))), float(np.exp(np.polyval(f, loss)))

    return answer


def _tokens_at(curve: list[tuple[float, float]], level: float) -> tuple[float, bool]:
    ordered = np.array(sorted(curve))
    inside = len(ordered) > 1 and ordered[0, 0] <= level <= ordered[-1, 0]
    return float(np.interp(level, ordered[:, 0], ordered[:, 1])), inside


def vertex_regression(table: Table, shown: Iterable[float]) -> Answer:
    """Ordinary least squares of the cells' vertices on ln N and ln D."""
    keys = [key for key in table.points if key[0] in set(shown)]
    design = np.array([[1.0, np.log(n), np.log(d)] for n, d in keys])
    vertices = np.array([judge(table.points[key]).vertex for key in keys])
    c = np.linalg.lstsq(design, vertices, rcond=None)[0]

    def answer(n: float, d: float) -> tuple[float, float]:
        lr, b = np.exp(np.array([1.0, np.log(n), np.log(d)]) @ c)
        return float(lr), float(b)

    return answer


def published(n: float, d: float) -> tuple[float, float]:
    """Step Law's own fit, converted from tokens to sequences."""
    return 1.797 * n**-0.713 * d**0.307, 0.581 * d**0.571 / SEQUENCE


def constant(_n: float, _d: float) -> tuple[float, float]:
    return 1e-3, 0.5e6 / SEQUENCE


@dataclass(frozen=True)
class Score:
    """Regret over the held-out cells of one or more splits; `answered` of `cells`."""

    regrets: tuple[float, ...]
    cells: int

    def __str__(self) -> str:
        if not self.regrets:
            return "refused"
        text = f"{np.mean(self.regrets):.4f} / {np.max(self.regrets):.4f}"
        missing = self.cells - len(self.regrets)
        return f"{text} ({missing} refused)" if missing else text


def score_split(table: Table, held_out: Sequence[float]) -> dict[str, Score]:
    """Every contender on one split."""
    shown = [n for n in table.sizes if n not in held_out]
    runs = [run for run in table.runs if run.params in shown]
    contenders: dict[str, Answer] = {
        **engine(runs),
        "vertex regression on ln N, ln D": vertex_regression(table, shown),
        "paper's route, plain": paper_route(runs),
        "published law": published,
        "constant 1e-3, 0.5 M tokens": constant,
    }
    cells = {key: judge(p) for key, p in table.points.items() if key[0] in held_out}
    scores = {name: _score(answer, cells) for name, answer in contenders.items()}
    scores["grid's own argmin (sees the cell)"] = _argmin(table, cells)
    return scores


def _score(answer: Answer, cells: dict[CellKey, Judge]) -> Score:
    found = [(cell, answer(*key)) for key, cell in cells.items()]
    return Score(tuple(c.regret(*a) for c, a in found if a is not None), len(cells))


def _argmin(table: Table, cells: dict[CellKey, Judge]) -> Score:
    best = {key: table.points[key][np.argmin(table.points[key][:, 2])] for key in cells}
    regrets = [cells[key].regret(*np.exp(row[:2])) for key, row in best.items()]
    return Score(tuple(regrets), len(cells))


def splits(sizes: Sequence[float]) -> list[tuple[float, ...]]:
    """Every way to hold sizes out and keep two."""
    return [held for k in range(1, len(sizes) - 1) for held in combinations(sizes, k)]


def required(name: str, sizes: Sequence[float]) -> list[tuple[float, ...]]:
    """Dense: the two largest sizes held out. MoE: each shape in turn."""
    return [tuple(sizes[3:])] if name == DENSE else [(n,) for n in sizes]


def pooled(scores: Sequence[dict[str, Score]]) -> dict[str, Score]:
    return {
        name: Score(
            tuple(r for s in scores for r in s[name].regrets), sum(s[name].cells for s in scores)
        )
        for name in scores[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--required-only", action="store_true", help="leave out the other splits")
    arguments = parser.parse_args()
    folder = data_folder(arguments.data)
    print("regret above the held-out cells' own minimum, nats: mean / max")
    for name in (DENSE, MOE):
        table = load(folder / name)
        chosen = [] if arguments.required_only else splits(table.sizes)
        by_split = {
            held: score_split(table, held) for held in {*chosen, *required(name, table.sizes)}
        }
        for held in required(name, table.sizes):
            _show(f"{name}: held out {', '.join(f'{n:.3g}' for n in held)}", by_split[held])
        if chosen:
            _show(f"{name}: all {len(chosen)} splits", pooled([by_split[h] for h in chosen]))


def _show(title: str, scores: dict[str, Score]) -> None:
    print(f"\n{title}")
    for name, score in scores.items():
        print(f"  {name:36s} {score}")


if __name__ == "__main__":
    main()
