"""Windows of the published sweeps, replayed point by point."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, product

import numpy as np

from benchmarks.science.cases import Truth
from benchmarks.science.judging import Judge
from benchmarks.science.tables import SEQUENCE, Table, lines
from benchmarks.search import sweeps
from isoloss.laws import Run
from isoloss.search import Point, Size

STEP = 0.55
"""Least ln units between two lines of a window: every other line of a table that is finer."""
SAME_LINE = 0.05
NEAR_LINE = 0.1
"""ln units within which a published line serves for one that a search adds: this far from an optimum, a run
loses less than 0.0002 nats."""
DIVERGED = 1.5
"""Times the table's median loss, above which a run diverged."""
APART = 1.8
"""Least ratio of FLOPs between the neighbouring sizes of a sweep."""
FAR = 2.0
"""Lines beyond its edge at which a window's optimum may lie."""

Key = tuple[float, int, int]
"""(N, index of LR, index of B)."""
Trajectory = tuple[np.ndarray, np.ndarray]
"""Nominal tokens, ascending, and the losses there: each of a run of its own."""


@dataclass(frozen=True)
class Replay:
    """A published sweep by configuration."""

    name: str
    runs: dict[Key, Trajectory]
    rates: np.ndarray
    """ln LR of the table's lines."""
    batches: np.ndarray
    """ln B."""
    judges: dict[tuple[float, float], Judge]
    median: float

    @property
    def counts(self) -> dict[float, list[float]]:
        """Token counts by size."""
        found: dict[float, list[float]] = defaultdict(list)
        for n, d in sorted(self.judges):
            found[n].append(d)
        return dict(found)


def replay(name: str, table: Table) -> Replay:
    """All runs of a table, by configuration."""
    rates = lines([run.learning_rate for run in table.runs], SAME_LINE)
    batches = lines([run.batch_size for run in table.runs], SAME_LINE)
    found: dict[Key, dict[float, float]] = defaultdict(dict)
    for run, (n, d) in zip(table.runs, table.cells, strict=True):
        at = (n, _nearest(rates, run.learning_rate), _nearest(batches, run.batch_size))
        found[at][d] = float(run.losses[-1])
    runs = {
        at: (np.array(sorted(own)), np.array([own[d] for d in sorted(own)]))
        for at, own in found.items()
    }
    median = float(np.median([run.losses[-1] for run in table.runs]))
    return Replay(name, runs, rates, batches, table.judges(), median)


def _nearest(at: np.ndarray, value: float) -> int:
    return int(np.argmin(np.abs(at - np.log(value))))


@dataclass(frozen=True)
class ReplayedSweep(sweeps.KnownSweep):
    """A window of a published sweep, whose runs have final losses only.

    Runs of one configuration on fewer tokens, each decayed to its own end, stand in for one run's
    trajectory. It has the published token counts alone: a loss interpolated between them would tell the
    search of a later one. A point that is to train to some tokens trains to the next published count.
    """

    source: Replay

    def train(self, point: Point, tokens: float) -> Run | None:
        size = self.size_of(point)
        rate = _nearest(self.source.rates, point.learning_rate)
        batch = _nearest(self.source.batches, point.batch_size)
        off = max(
            abs(self.source.rates[rate] - np.log(point.learning_rate)),
            abs(self.source.batches[batch] - np.log(point.batch_size)),
        )
        found = self.source.runs.get((size.params, rate, batch))
        if off > NEAR_LINE or found is None or size.tokens not in found[0]:
            return None
        last = int(np.searchsorted(found[0], min(0.999 * tokens, size.tokens)))
        counts, losses = found[0][: last + 1], found[1][: last + 1]
        bad = losses > DIVERGED * self.source.median
        if bad.any():
            counts, losses = counts[: bad.argmax() + 1], losses[: bad.argmax() + 1]
        return Run(
            str(point),
            size.params,
            point.batch_size,
            SEQUENCE,
            point.learning_rate,
            counts,
            losses,
            diverged=bool(bad.any()),
        )

    @property
    def beyond(self) -> sweeps.Target | None:
        """The dearest cell of a larger size, at most ten times as dear."""
        cost = self.sizes[-1].params * self.sizes[-1].tokens
        larger = [
            (n, d)
            for n, d in self.source.judges
            if n > self.sizes[-1].params and cost < n * d <= sweeps.TEN_TIMES * cost
        ]
        if not larger:
            return None
        return self.target(*max(larger, key=lambda cell: cell[0] * cell[1]))

    def truth_at(self, params: float, tokens: float) -> Truth:
        return self.source.judges[params, tokens]


def replayed_sweeps(source: Replay, seed: int = 0) -> Iterator[ReplayedSweep]:
    """Of every ladder and every grid from 3 x 3 to 5 x 5, a window per place of the optimum, at random."""
    rng = np.random.default_rng(seed)
    for cells in ladders(source):
        vertex = source.judges[cells[-1]].vertex
        for count in (3, 4, 5):
            windows = defaultdict(list)
            for rates, batches in _windows(source, count):
                place = sweeps.place_of(vertex, rates, batches)
                if place in ("inside", "near") or _is_mendable(source, cells[-1], rates, batches):
                    windows[place].append((rates, batches))
            for place, found in sorted(windows.items()):
                rates, batches = found[int(rng.integers(len(found)))]
                yield _sweep(source, cells, rates, batches, place)


def _is_mendable(
    source: Replay, cell: tuple[float, float], rates: np.ndarray, batches: np.ndarray
) -> bool:
    """Whether the optimum is at most FAR lines outside, and what a search trains on its way there is published: the
    runs from the grid's nearest cell to the optimum's, and all about that: the laws ask for three lines each way."""
    vertex = source.judges[cell].vertex
    if sweeps.steps_outside(vertex, rates, batches) > FAR:
        return False
    ways, beside = [], []
    for at, values, published in zip(
        vertex, (rates, batches), (source.rates, source.batches), strict=True
    ):
        longer = _extended(np.log(values), float(at))
        served = [int(np.argmin(np.abs(published - line))) for line in longer]
        if np.max(np.abs(published[served] - longer)) > NEAR_LINE:
            return False
        to = int(np.argmin(np.abs(longer - at)))
        own = np.abs(longer - np.clip(longer[to], np.log(values[0]), np.log(values[-1])))
        start = int(np.argmin(own))
        ways.append(served[min(start, to) : max(start, to) + 1])
        beside.append(served[to - 1 : to + 2])
    n, d = cell
    found = (source.runs.get((n, i, j)) for i, j in {*product(*ways), *product(*beside)})
    return all(run is not None and d in run[0] for run in found)


def _extended(lines: np.ndarray, at: float) -> np.ndarray:
    """ln of the lines of an axis and of those that are added, each a step further, until the one nearest to a place
    has lines on both sides."""
    nearest = int(np.argmin(np.abs(lines - at)))
    if nearest == 0:
        return _extended(np.array([2 * lines[0] - lines[1], *lines]), at)
    if nearest == len(lines) - 1:
        return _extended(np.array([*lines, 2 * lines[-1] - lines[-2]]), at)
    return lines


def _windows(source: Replay, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(learning rates, batch sizes) of every place of a count x count grid in the table."""
    strides = [_stride(axis) for axis in (source.rates, source.batches)]
    starts = [
        range(len(axis) - stride * (count - 1))
        for axis, stride in zip((source.rates, source.batches), strides, strict=True)
    ]
    for i, j in product(*starts):
        yield (
            np.exp(source.rates[i :: strides[0]][:count]),
            np.exp(source.batches[j :: strides[1]][:count]),
        )


def _stride(axis: np.ndarray) -> int:
    return 1 if float(np.median(np.diff(axis))) > STEP else 2


def ladders(source: Replay) -> list[tuple[tuple[float, float], ...]]:
    """Cells (N, D) of the sizes of a sweep, all at their second, third or fourth token count.

    Each size costs APART times the one before or more, as anybody would choose them, and beside those all
    sizes together where the last costs the most.
    """
    counts = source.counts
    found = []
    for at in (1, 2, 3):
        cells = [(n, own[at]) for n, own in sorted(counts.items()) if at < len(own)]
        for size in range(2, len(cells) + 1):
            for chosen in combinations(cells, size):
                costs = [n * d for n, d in chosen]
                steps = [b / a for a, b in pairwise(costs)]
                every = chosen == tuple(cells) and costs[-1] > 1.1 * max(costs[:-1])
                if min(steps) >= APART or every:
                    found.append(chosen)
    return found


def _sweep(
    source: Replay,
    cells: tuple[tuple[float, float], ...],
    rates: np.ndarray,
    batches: np.ndarray,
    place: sweeps.Place,
) -> ReplayedSweep:
    sizes = tuple(
        Size(f"n{k}", n, d, tuple(map(float, batches)), tuple(map(float, rates)))
        for k, (n, d) in enumerate(cells)
    )
    grid = f"{len(rates)}x{len(batches)}"
    return ReplayedSweep(f"{source.name} {len(cells)} sizes {grid} {place}", sizes, place, source)
