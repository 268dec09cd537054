"""Designs that are parts of a published sweep: a few sizes, up to some tokens, the runs about each cell's best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from benchmarks.economy.outcomes import Outcome, asked
from benchmarks.science.contenders import Answer, argmin
from benchmarks.science.contenders import published as published_law
from benchmarks.science.tables import CellKey, Table
from isoloss import laws as engine
from isoloss.design import Knowledge, PlannedRun, Setting, Target, evidence

ABOUT_BEST = 12
"""Runs of each cell."""


@dataclass(frozen=True)
class Part:
    """The runs of one design, and where their optima are."""

    number: int
    cells: tuple[CellKey, ...]
    runs: tuple[engine.Run, ...]
    known: Knowledge

    @property
    def flops(self) -> float:
        """6ND of all runs at each size's most tokens: a run at a constant learning rate passes by the fewer ones."""
        ends = {n: max(d for m, d in self.cells if m == n) for n, _ in self.cells}
        return ABOUT_BEST * sum(6.0 * n * d for n, d in ends.items())


def parts(table: Table, *, brief: bool) -> Iterator[Part]:
    """Every two or three sizes, each to its first, second, … token count."""
    runs: dict[CellKey, list[engine.Run]] = {}
    for run, key in zip(table.runs, table.cells, strict=True):
        runs.setdefault(key, []).append(run)
    points, judges = table.points, table.judges()
    number = 0
    for count in (2,) if brief else (2, 3):
        for sizes in combinations(table.sizes, count):
            counts = {n: sorted(d for m, d in points if m == n) for n in sizes}
            for upto in range(1, max(map(len, counts.values())) + 1):
                cells = tuple((n, d) for n in sizes for d in counts[n][:upto])
                is_new = any(len(counts[n]) >= upto for n in sizes)
                if not is_new or len(cells) < 3:
                    continue
                number += 1
                chosen = {key: _about(points[key], runs[key]) for key in cells}
                vertices = np.array([judges[key].vertex for key in cells])
                yield Part(
                    number,
                    cells,
                    tuple(run for each in chosen.values() for run in each),
                    _known(cells, vertices, chosen),
                )


def _about(points: np.ndarray, runs: Sequence[engine.Run]) -> list[engine.Run]:
    best = points[np.argmin(points[:, 2]), :2]
    nearest = np.argsort(((points[:, :2] - best) ** 2).sum(axis=1))
    return [runs[k] for k in nearest[:ABOUT_BEST]]


def _known(
    cells: Sequence[CellKey], vertices: np.ndarray, runs: dict[CellKey, list[engine.Run]]
) -> Knowledge:
    """What the design tells before its losses are read. Grids are known to be about the optima: their places are used for that alone."""
    logs = np.log(np.array(cells))
    centre = logs.mean(axis=0)
    design = np.concatenate([np.ones((len(cells), 1)), logs - centre], axis=1)
    law = np.linalg.lstsq(design, vertices, rcond=None)[0]
    setting = Setting(
        engine.OptimumTrends(
            engine.Trend(*law[:, 0]), engine.Trend(*law[:, 1]), *map(float, centre)
        )
    )
    ends = {n: max(d for m, d in cells if m == n) for n, _ in cells}
    params, tokens = np.log(list(ends.items())).mean(axis=0)
    middle = float(params), float(tokens)
    shown = [
        evidence(setting, _planned(runs, size), end, middle, own_runs=True)
        for size, end in ends.items()
    ]
    return Knowledge.of(setting, list(ends.items()), shown, middle, own_runs=True)


def _planned(runs: dict[CellKey, list[engine.Run]], size: float) -> list[PlannedRun]:
    return [
        PlannedRun(n, run.batch_size, run.learning_rate, d, d)
        for (n, d), each in runs.items()
        for run in each
        if n == size
    ]


def outcomes(table: Table, *, brief: bool) -> dict[CellKey, list[Outcome]]:
    """By target: a cell of no smaller a size, and of more compute, than any of the design."""
    judges = {key: judge for key, judge in table.judges().items() if judge.convex}
    found: dict[CellKey, list[Outcome]] = {}
    for part in parts(table, brief=brief):
        most = max(n * d for n, d in part.cells)
        smallest, *_, largest = sorted(n for n, _ in part.cells)
        beyond = [
            key
            for key in judges
            if key not in part.cells and key[0] >= largest and key[0] * key[1] > most
        ]
        laws = _fitted(part.runs) if beyond else None
        for n, d in beyond:
            expected = part.known.outlook(Target(n, d)).nats
            cost = part.flops / (6.0 * n * d)
            asking = Outcome(part.number, cost, expected, largest, largest / smallest)
            found.setdefault((n, d), []).append(asked(asking, laws, (n, d), judges[n, d]))
    return found


def _fitted(runs: Sequence[engine.Run]) -> engine.Laws | None:
    try:
        return engine.fit_laws(runs, engine.FitOptions(bootstrap_samples=20))
    except np.linalg.LinAlgError:  # counted as a refusal
        return None


def without_a_sweep(table: Table, targets: Sequence[CellKey]) -> dict[str, list[float]]:
    """Regrets of what costs nothing: the published law, and the best run of the nearest smaller size."""
    judges = table.judges()
    found: dict[str, list[float]] = {"published law": [], "best run of the nearest size": []}
    for n, d in targets:
        smaller = [run for run in table.runs if run.params < n]
        answers: dict[str, Answer | None] = {"published law": published_law(n, d)}
        if smaller:
            answers["best run of the nearest size"] = argmin(smaller)(n, d)
        for name, answer in answers.items():
            if answer is not None:
                regret = judges[n, d].regret(
                    float(np.exp(answer.log_rate)), float(np.exp(answer.log_batch))
                )
                found[name].append(regret)
    return found
