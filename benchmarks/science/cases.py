"""What is asked of every contender: rows of cases, each with the runs shown and the judges of its answers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol

import numpy as np

from benchmarks.science import shapes
from benchmarks.science.tables import Table, lines
from isoloss.laws import Run

SEED_NOISE = 0.0015
"""Nats by which a replicate of a published run is made to differ."""
TOO_LOW = 0.15
"""Nats that an outlier is below its true loss."""
RATIO = 2.5
"""Target size over the largest synthetic one."""
FAR_RATIO, FAR_TOKENS = 20.0, 8.0
"""The same where a row is asked far away, and target tokens over the largest."""
SAME_LINE = 0.01
"""ln units up to which values are spellings of one."""


class Truth(Protocol):
    """Where the least loss is, and what other settings cost."""

    @property
    def vertex(self) -> np.ndarray:
        """(ln LR, ln B)."""
        ...

    @property
    def vertex_error(self) -> np.ndarray:
        """(2,) standard deviations of it."""
        ...

    def regret(self, lr: float, b: float) -> float:
        """Nats above the least loss."""
        ...


@dataclass(frozen=True)
class Case:
    """Runs that are shown, and (N, D) with the truth there."""

    runs: tuple[Run, ...]
    targets: tuple[tuple[float, float, Truth], ...]


@dataclass(frozen=True)
class Row:
    """One line of the result."""

    name: str
    cases: Iterable[Case]
    """Those of this module are made one by one, before the next row is asked for, or never."""


def published_rows(name: str, table: Table, seeds: int) -> Iterator[Row]:
    """All splits of one published sweep."""
    sizes = table.sizes
    every = {n: [m for m in sizes if m != n] for n in sizes}
    yield Row(f"{name} leave one size out", (_split(table, every[n], [n]) for n in sizes))
    yield Row(
        f"{name} smallest to larger",
        (_split(table, sizes[:k], sizes[k:]) for k in range(2, len(sizes))),
    )
    for count, words in ((3, "three"), (4, "four")):
        chosen = [list(some) for some in combinations(sizes, count) if some[-1] < sizes[-1]]
        upward = (_split(table, some, [n for n in sizes if n > some[-1]]) for some in chosen)
        if chosen:
            yield Row(f"{name} upward from {words}", upward)
    pairs = [list(pair) for pair in combinations(sizes, 2)]
    yield Row(
        f"{name} two sizes",
        (_split(table, p, [n for n in sizes if n not in p]) for p in pairs),
    )
    last = sizes[-1]
    rng = np.random.default_rng(0)
    windows = (
        Case(_window(table, every[n], rng), _targets(table, [n]))
        for n in sizes
        for _ in range(seeds)
    )
    yield Row(f"{name} 3x3 windows", windows)
    thinned = (_thinned(table, keep) for keep in _thinnings(table, seeds))
    yield Row(f"{name} thinned grids", (Case(runs, _targets(table, sizes)) for runs in thinned))
    shown = _of(table, every[last])
    targets = _targets(table, [last])
    yield Row(
        f"{name} replicates",
        (Case(replicated(shown, np.random.default_rng(s)), targets) for s in range(seeds)),
    )
    yield Row(
        f"{name} swapped labels",
        (Case(swapped(shown, np.random.default_rng(s)), targets) for s in range(2 * seeds)),
    )
    yield Row(
        f"{name} an outlier",
        (Case(with_outlier(shown, np.random.default_rng(s)), targets) for s in range(2 * seeds)),
    )


def synthetic_rows(seeds: int) -> Iterator[Row]:
    """Truths of known shape, asked at 2.5 times the largest size, and at 20 times."""
    for shape in shapes.SHAPES:
        for words, layout in (
            ("", shapes.WIDE),
            (" 3x3", shapes.SMALL),
            (" two sizes", shapes.TWO),
            (" five sizes", shapes.MANY),
        ):
            cases = (synthetic_case(shape, layout, seed) for seed in range(seeds))
            yield Row(f"synthetic {shape}{words}", cases)
    for shape in shapes.SHAPES:
        far = (
            replace(synthetic_case(shape, shapes.WIDE, seed), targets=(_far(shape, seed),))
            for seed in range(seeds)
        )
        yield Row(f"synthetic {shape}, far", far)
    cliffs = (synthetic_case("skewed", shapes.WIDE, seed, cliff=0.9) for seed in range(seeds))
    yield Row("synthetic skewed, diverging", cliffs)
    for words, change in (
        ("replicates", replicated),
        ("swapped labels", swapped),
        ("an outlier", with_outlier),
    ):
        cases = (synthetic_case("scattered", shapes.WIDE, seed) for seed in range(seeds))
        changed = (
            replace(case, runs=change(case.runs, np.random.default_rng([seed, 5])))
            for seed, case in enumerate(cases)
        )
        yield Row(f"synthetic {words}", changed)


def synthetic_case(shape: str, layout: shapes.Layout, seed: int, cliff: float = np.inf) -> Case:
    """One synthetic sweep, and targets of the largest tokens and of twice as many."""
    truth = shapes.surface(shape, seed)
    n = RATIO * layout.sizes[-1]
    targets = tuple(
        (n, d, shapes.SyntheticJudge(truth, n, d))
        for d in (layout.tokens[-1], 2.0 * layout.tokens[-1])
    )
    return Case(shapes.runs_on(truth, layout, seed, cliff=cliff), targets)


def _far(shape: str, seed: int) -> tuple[float, float, Truth]:
    n, d = FAR_RATIO * shapes.WIDE.sizes[-1], FAR_TOKENS * shapes.WIDE.tokens[-1]
    return n, d, shapes.SyntheticJudge(shapes.surface(shape, seed), n, d)


def _of(table: Table, sizes: Sequence[float]) -> tuple[Run, ...]:
    return tuple(run for run in table.runs if run.params in sizes)


def _targets(table: Table, sizes: Sequence[float]) -> tuple[tuple[float, float, Truth], ...]:
    return tuple((n, d, j) for (n, d), j in sorted(table.judges().items()) if n in sizes)


def _split(table: Table, shown: Sequence[float], asked: Sequence[float]) -> Case:
    return Case(_of(table, shown), _targets(table, asked))


def _window(table: Table, sizes: Sequence[float], rng: np.random.Generator) -> tuple[Run, ...]:
    """Of each size the 3 x 3 grid around its best run at the most tokens, every other line, moved by a line at most."""
    kept: list[Run] = []
    for size in sizes:
        cells = {d for n, d in table.cells if n == size}
        last = table.points[size, max(cells)]
        best = last[np.argmin(last[:, 2])]
        own = [run for run in table.runs if run.params == size]
        chosen = []
        for k, name in enumerate(("learning_rate", "batch_size")):
            at = lines([getattr(run, name) for run in own], SAME_LINE)
            middle = int(np.argmin(np.abs(at - best[k]))) + int(rng.integers(-1, 2))
            middle = int(np.clip(middle, 2, len(at) - 3))
            chosen.append(at[[middle - 2, middle, middle + 2]])
        kept += [
            run
            for run in own
            if np.min(np.abs(chosen[0] - np.log(run.learning_rate))) < 0.01
            and np.min(np.abs(chosen[1] - np.log(run.batch_size))) < 0.01
        ]
    return tuple(kept)


def _thinnings(table: Table, seeds: int) -> list[np.ndarray]:
    """(runs,) flags: every other learning rate, every other batch size, a random half or fifth."""
    flags = []
    for name in ("learning_rate", "batch_size"):
        values = [getattr(run, name) for run in table.runs]
        known = lines(values, SAME_LINE)
        at = np.array([int(np.argmin(np.abs(known - np.log(v)))) for v in values])
        flags += [at % 2 == 0, at % 2 == 1]
    rng = np.random.default_rng(3)
    flags += [rng.random(len(table.runs)) < share for share in [0.5, 0.2] * seeds]
    return flags


def _thinned(table: Table, keep: np.ndarray) -> tuple[Run, ...]:
    return tuple(run for run, kept in zip(table.runs, keep, strict=True) if kept)


def replicated(runs: Sequence[Run], rng: np.random.Generator) -> tuple[Run, ...]:
    """Every run twice more, with the noise of other seeds."""
    copies = [
        replace(r, name=f"{r.name}-seed{k}", losses=r.losses + SEED_NOISE * rng.standard_normal())
        for k in (1, 2)
        for r in runs
    ]
    return (*runs, *copies)


def swapped(runs: Sequence[Run], rng: np.random.Generator) -> tuple[Run, ...]:
    """One of the best tenth of a size's longest runs and another have each other's learning rate and batch size."""
    group = _longest(runs, rng)
    good = group[int(rng.integers(max(len(group) // 10, 1)))]
    other = group[int(rng.integers(len(group) // 3, len(group)))]
    labels = {good.name: other, other.name: good}
    return tuple(
        replace(
            r, learning_rate=labels[r.name].learning_rate, batch_size=labels[r.name].batch_size
        )
        if r.name in labels
        else r
        for r in runs
    )


def with_outlier(runs: Sequence[Run], rng: np.random.Generator) -> tuple[Run, ...]:
    """One run of a size reports losses that are too low."""
    group = _longest(runs, rng)
    name = group[int(rng.integers(len(group)))].name
    return tuple(replace(r, losses=r.losses - TOO_LOW) if r.name == name else r for r in runs)


def _longest(runs: Sequence[Run], rng: np.random.Generator) -> list[Run]:
    """One size's runs of the most tokens, best first."""
    sizes = sorted({r.params for r in runs})
    size = sizes[int(rng.integers(len(sizes)))]
    own = [r for r in runs if r.params == size]
    most = max(r.tokens[-1] for r in own)
    return sorted(
        (r for r in own if r.tokens[-1] > 0.98 * most), key=lambda r: float(r.losses[-1])
    )
